package k8s

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// dialTime is how long an API server has to accept a connection.
	dialTime = 2 * time.Second
	// deadTime is how long the machine of an API server may acknowledge nothing. Behind one address there are several API
	// servers: a connection to one that lost its power would stand for 45 s by client-go's defaults. The kernels see to
	// it, so that an API server that is merely slow keeps its connections.
	deadTime = 4 * time.Second
)

// keepAlive has the kernel ask the other one on connections that nothing is sent on.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: deadTime / 2, Interval: time.Second, Count: int((deadTime / 2).Seconds())}

// dial connects to an API server.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTime, KeepAliveConfig: keepAlive, Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		// RFC 5482: the user timeout.
		control := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadTime.Milliseconds()))
		})
		return errors.Join(control, err)
	}}
	return d.DialContext(ctx, network, address)
}
