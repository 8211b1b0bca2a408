package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// Serve answers over HTTP and UDP at one address and port, for connections that pods open to a host outside of the
// cluster: each answer is an Answer with the client's address as this host sees it. It calls listening once both ports
// are open, and returns when ctx ends, or if a port cannot be opened.
func Serve(ctx context.Context, address string, listening func()) error {
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen for HTTP: %w", err)
	}
	udp, err := net.ListenPacket("udp", address)
	if err != nil {
		return errors.Join(fmt.Errorf("listen for UDP: %w", err), tcp.Close())
	}

	server := &http.Server{Handler: http.HandlerFunc(answerHTTP), ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() {
		_ = server.Close()
		_ = udp.Close()
	})()
	go answerUDP(udp)
	listening()

	err = server.Serve(tcp)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// answerHTTP answers a request.
func answerHTTP(w http.ResponseWriter, r *http.Request) {
	client, _ := netip.ParseAddrPort(r.RemoteAddr) // net/http writes it so
	_ = json.NewEncoder(w).Encode(answerTo(client))
}

// answerUDP answers datagrams until the socket is closed.
func answerUDP(conn net.PacketConn) {
	buffer := make([]byte, 1<<16)
	for {
		_, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		client, _ := netip.ParseAddrPort(from.String())
		text, _ := json.Marshal(answerTo(client))
		_, _ = conn.WriteTo(text, from)
	}
}

// answerTo returns the answer for a client.
func answerTo(client netip.AddrPort) Answer {
	return Answer{Client: client.Addr().Unmap().String(), Port: client.Port()}
}
