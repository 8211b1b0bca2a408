package hostinit

import (
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// gatePoll is short, for a whole cluster waits behind a gate.
const gatePoll = 50 * time.Millisecond

// waitGate returns when the URL answers 200, or the file exists. It waits for ever: PID 1 has
// nothing better to do, and a host without the service is still a host.
func waitGate(gate string) {
	open := answers(gate)
	if filepath.IsAbs(gate) {
		open = func() bool { _, err := os.Stat(gate); return err == nil }
	}
	for tick := time.NewTicker(gatePoll); gate != "" && !open(); <-tick.C {
	}
}

// answers returns a function that asks a URL.
func answers(url string) func() bool {
	client := &http.Client{
		Timeout: 2 * time.Second,
		// The request carries no secret, so the server's identity does not matter.
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
	}
	return func() bool {
		resp, err := client.Get(url)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
}
