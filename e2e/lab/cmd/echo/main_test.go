package main

import (
	"net/http/httptest"
	"net/netip"
	"testing"
)

func TestAnswer(t *testing.T) {
	t.Setenv("POD_NAME", "echo-1")
	t.Setenv("NODE_NAME", "w1")
	for client, want := range map[string]string{
		"[::ffff:192.0.2.1]:4711": `{"pod":"echo-1","node":"w1","client":"192.0.2.1"}` + "\n",
		"[2001:db8::1]:4711":      `{"pod":"echo-1","node":"w1","client":"2001:db8::1"}` + "\n",
	} {
		if got := string(newAnswer(netip.MustParseAddrPort(client))); got != want {
			t.Errorf("%s: got %q, want %q", client, got, want)
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = client
		w := httptest.NewRecorder()
		handler().ServeHTTP(w, r)
		if got := w.Body.String(); got != want {
			t.Errorf("%s over HTTP: got %q, want %q", client, got, want)
		}
	}
}
