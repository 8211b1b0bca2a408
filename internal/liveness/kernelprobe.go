package liveness

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"
)

const (
	// kernelAttempts is how often each address is tried, kernelPause apart: the kernel itself
	// would repeat a lost SYN only after a second (RFC 6298 section 2.1).
	kernelAttempts = 3
	kernelPause    = 40 * time.Millisecond
)

// kernelAnswers reports whether the kernel of a node is alive, without the help of a program there: it refuses a TCP
// connection to a port without a listener, and accepts a connection to a program that hangs. Only a node that is off,
// or that the network does not reach, is silent. This separates the death of a speaker from the death of its node. The
// addresses belong to one node. One address that accepts, refuses or resets within the time is enough.
func kernelAnswers(ctx context.Context, within time.Duration, addresses ...netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tries := kernelAttempts * len(addresses)
	answers := make(chan bool, tries)
	for i := range kernelAttempts {
		for _, a := range addresses {
			time.AfterFunc(time.Duration(i)*kernelPause, func() { answers <- connects(ctx, a) })
		}
	}

	for range tries {
		if <-answers {
			return true
		}
	}

	return false
}

// connects reports whether a kernel accepts, refuses or resets a connection.
func connects(ctx context.Context, a netip.AddrPort) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", a.String())
	if err == nil {
		conn.Close()
		return true
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}
