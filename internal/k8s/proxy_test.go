package k8s

import (
	"testing"
	"time"
)

// The agent of a proxy reads five kinds, and no Secret: it has no right to more, and does not wait for one.
func TestProxyReads(t *testing.T) {
	start := time.Now()
	k := secretServer(t, nil, func(c *Config) { c.Speaker, c.Proxy = false, true })
	if err := k.WaitForSync(t.Context()); err != nil || time.Since(start) > secretsTime/2 {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
	if o := k.Objects(); len(k.views) != 5 || k.secrets != nil || len(o.Services) != 0 {
		t.Errorf("it reads %d kinds: %+v", len(k.views), o)
	}
}
