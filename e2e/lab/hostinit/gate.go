package hostinit

import (
	"crypto/tls"
	"net/http"
	"time"
)

// gatePoll is short, for a whole cluster waits behind a gate.
const gatePoll = 50 * time.Millisecond

// waitGate returns when the URL answers 200. It waits for ever: PID 1 has
// nothing better to do, and a host without the service is still a host.
func waitGate(url string) {
	if url == "" {
		return
	}
	client := &http.Client{
		Timeout: 2 * time.Second,
		// The request carries no secret, so the server's identity does not matter.
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
	}
	for tick := time.NewTicker(gatePoll); ; <-tick.C {
		resp, err := client.Get(url)
		if err != nil {
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return
		}
	}
}
