package probe

import (
	"context"
	"net"
	"testing"
	"time"
)

// TestServe asks a server over both protocols and both families for the client's address.
func TestServe(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		free, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		address := free.Addr().String()
		free.Close()

		ctx, stop := context.WithCancel(t.Context())
		listening, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- Serve(ctx, address, func() { close(listening) }) }()
		<-listening
		for _, protocol := range []string{TCP, UDP} {
			c := Config{Protocol: protocol, Target: address, Every: time.Millisecond, Timeout: 5 * time.Second, Count: 1}
			err := Run(ctx, c, func(r Result) {
				if !r.OK || r.Answer.Client != host || r.Answer.Port == 0 {
					t.Errorf("%s %s: %+v", protocol, address, r)
				}
			})
			if err != nil {
				t.Error(err)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	if err := Serve(t.Context(), "192.0.2.1:1", func() { t.Error("it listens") }); err == nil {
		t.Error("no error for an address that is not local")
	}
}
