package k8s

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/holdfast-lb/holdfast/internal/config"
)

// TestServiceCIDRs: the list follows the API server: without the kind, after an upgrade that brings it, a
// change, and refusals, which change nothing and are logged once.
func TestServiceCIDRs(t *testing.T) {
	var answer atomic.Pointer[string]
	const list = `{"kind":"ServiceCIDRList","apiVersion":"networking.k8s.io/v1","items":[
		{"metadata":{"name":"kubernetes"},"spec":{"cidrs":["10.96.0.0/12","fd00:96::/112"]}},
		{"metadata":{"name":"more"},"spec":{"cidrs":["10.200.0.0/16","nonsense"]}}]}`
	clients := serving(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != serviceCIDRsPath {
			t.Errorf("asked for %s", r.URL.Path)
		}
		text := *answer.Load()
		switch text {
		case "404":
			w.WriteHeader(http.StatusNotFound)
		case "403":
			w.WriteHeader(http.StatusForbidden)
		default:
			_, _ = w.Write([]byte(text))
		}
	})
	var log bytes.Buffer
	kicks := 0
	logger := slog.New(slog.NewTextHandler(&log, nil))
	k := &Cluster{clients: clients, config: Config{Log: logger, Kick: func() { kicks++ }}}
	both := []config.ServiceCIDR{
		{Name: "kubernetes", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"),
			netip.MustParsePrefix("fd00:96::/112")}},
		{Name: "more", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}},
	}
	for i, step := range []struct {
		answer string
		want   []config.ServiceCIDR
		kicks  int
	}{
		{"404", nil, 0},
		{"403", nil, 0},
		{"403", nil, 0},
		{list, both, 1},
		{list, both, 1},
		{"403", both, 1},
		{"404", nil, 2},
	} {
		answer.Store(&step.answer)
		k.serviceCIDRs.refresh(t.Context(), k)
		got := k.serviceCIDRs.all()
		diff := cmp.Diff(step.want, got, cmpopts.EquateComparable(netip.Prefix{}), cmpopts.EquateEmpty())
		if diff != "" {
			t.Errorf("step %d: -want +got\n%s", i, diff)
		}
		if kicks != step.kicks {
			t.Errorf("step %d: %d kicks, want %d", i, kicks, step.kicks)
		}
	}
	if n := strings.Count(log.String(), "cannot list ServiceCIDRs"); n != 2 {
		t.Errorf("%d lines for two times in which the API server refused:\n%s", n, log.String())
	}
}
