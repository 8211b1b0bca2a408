package kubeproxy

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestRules: what exists in a real kernel, as the modes of kube-proxy leave it there.
func TestRules(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		nft := func(command string) func() { return func() { node.Output("nft", command) } }
		for _, tt := range []struct {
			name string
			does func()
			want sign
		}{
			{"nothing", func() {}, silent},
			{"somebody else's", nft("add table inet kube-proxy; add table ip nat; add chain ip nat KUBE-SERVICES"), silent},
			{"iptables, chains that rules will lead to", nft("add chain ip nat KUBE-POSTROUTING; add table ip6 filter; add chain ip6 filter KUBE-MARK-MASQ"), silent},
			{"iptables, IPv4", nft("add chain ip nat KUBE-MARK-MASQ"), oneFamily},
			{"iptables", nft("add table ip6 nat; add chain ip6 nat KUBE-MARK-MASQ"), allFamilies},
			{"taken away again", nft("flush ruleset"), silent},
			{"nftables, IPv4", nft("add table ip kube-proxy"), oneFamily},
			{"nftables", nft("add table ip6 kube-proxy"), allFamilies},
			{"IPv6 alone", nft("delete table ip kube-proxy"), oneFamily},
			{"a node without IPv6", func() {
				nft("flush ruleset; add table ip kube-proxy")()
				node.Sysctl("ipv6/conf/all/disable_ipv6", "1")
			}, allFamilies},
			{"marked", func() {
				nft("flush ruleset")()
				for range 2 {
					if err := mark(); err != nil {
						t.Fatal(err)
					}
				}
			}, servedBefore},
			{"forgotten", func() {
				for range 2 {
					if err := Forget(); err != nil {
						t.Fatal(err)
					}
				}
			}, silent},
		} {
			tt.does()
			if got := rules(); got != tt.want {
				t.Errorf("%s: %s", tt.name, got.describe("it"))
			}
		}
		if got := node.Output("nft", "list", "tables"); got != "" {
			t.Errorf("left are %s", got)
		}
	})
}

// TestBoot starts a node: kube-proxy listens before it has made its rules, and a second
// speaker does not wait, though kube-proxy is gone.
func TestBoot(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		var asked atomic.Int64
		proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
		start := func() (*Boot, func()) {
			ctx, stop := context.WithCancel(t.Context())
			b := New(Config{Log: slog.New(slog.DiscardHandler), Livez: proxy.Listener.Addr().String(), Kick: func() {}})
			done := make(chan error, 1)
			go func() { done <- b.Run(ctx) }()
			return b, func() {
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}
		b, stop := start()
		<-b.Looked()
		looks := asked.Load()
		nstest.Until(t, 5*time.Second, "two more looks", func() bool { return asked.Load() >= looks+2 })
		if b.Served() {
			t.Error("it has served without rules")
		}
		node.Output("nft", "add table ip kube-proxy; add table ip6 kube-proxy")
		nstest.Until(t, 5*time.Second, "the rules are seen", b.Served)
		stop()
		proxy.Close()
		node.Output("nft", "delete table ip kube-proxy; delete table ip6 kube-proxy")
		b, stop = start()
		<-b.Looked()
		if !b.Served() {
			t.Errorf("the second speaker waits: %s", b.Waiting())
		}
		stop()
	})
}
