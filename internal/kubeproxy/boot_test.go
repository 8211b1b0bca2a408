package kubeproxy

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestSuffices: for how long each sign must be seen, and that another one in between starts it over.
func TestSuffices(t *testing.T) {
	type look struct {
		after time.Duration
		found sign
		want  bool
	}
	for _, tt := range []struct {
		name  string
		looks []look
	}{
		{"rules", []look{{0, allFamilies, true}}},
		{"an earlier speaker", []look{{0, servedBefore, true}}},
		{"silent", []look{{0, silent, false}, {30*time.Second - 1, silent, false}, {1, silent, true}}},
		{"it lives", []look{{0, live, false}, {10*time.Second - 1, live, false}, {1, live, true}}},
		{"it lives and makes its rules", []look{
			{0, live, false}, {time.Second, oneFamily, false}, {time.Second, allFamilies, true},
		}},
		{"the rules of one family only", []look{
			{0, oneFamily, false}, {2*time.Second - 1, oneFamily, false}, {1, oneFamily, true},
		}},
		{"it is not well", []look{{0, unready, false}, {24 * time.Hour, unready, false}}},
		{"it comes late", []look{
			{0, silent, false}, {29 * time.Second, unready, false}, {time.Hour, unready, false}, {1, allFamilies, true},
		}},
		{"it crashes again and again", []look{
			{0, silent, false}, {20 * time.Second, live, false}, {5 * time.Second, silent, false},
			{20 * time.Second, live, false}, {5 * time.Second, silent, false}, {29 * time.Second, silent, false},
			{time.Second, silent, true},
		}},
	} {
		var seen steadySign
		at := time.Now()
		for i, l := range tt.looks {
			at = at.Add(l.after)
			if got := seen.observe(at, l.found); got != l.want {
				t.Errorf("%s, look %d: %t", tt.name, i, got)
			}
		}
	}
}

// TestSeenRules: for how long rules must be missing, and that only those are missed that were seen.
func TestSeenRules(t *testing.T) {
	both, four, six := []lb.Family{lb.IPv4, lb.IPv6}, []lb.Family{lb.IPv4}, []lb.Family{lb.IPv6}
	type look struct {
		after     time.Duration
		have, all []lb.Family
		want      string
	}
	for _, tt := range []struct {
		name  string
		looks []look
	}{
		{"all is well", []look{{0, both, both, "[]"}, {time.Hour, both, both, "[]"}}},
		{"rules that are invisible", []look{{0, nil, both, "[]"}, {time.Hour, nil, both, "[]"}}},
		{"flushed", []look{{0, both, both, "[]"}, {time.Second, nil, both, "[]"}, {2*time.Second - 1, nil, both, "[]"},
			{1, nil, both, "[IPv4 IPv6]"},
			{time.Hour, nil, both, "[IPv4 IPv6]"}}},
		{"and back, family by family", []look{{0, both, both, "[]"}, {0, nil, both, "[]"},
			{time.Minute, nil, both, "[IPv4 IPv6]"},
			{time.Second, four, both, "[IPv6]"}, {time.Second, both, both, "[]"}}},
		{"another mode", []look{{0, both, both, "[]"}, {0, nil, both, "[]"}, {time.Second, nil, both, "[]"},
			{999 * time.Millisecond, both, both, "[]"},
			{time.Second, nil, both, "[]"}, {time.Second, nil, both, "[]"}}},
		{"a family that never had rules", []look{{0, four, both, "[]"}, {time.Hour, four, both, "[]"}}},
		{"a family that the node has no more", []look{
			{0, both, both, "[]"}, {0, four, four, "[]"}, {time.Hour, four, four, "[]"},
		}},
		{"one family", []look{{0, both, both, "[]"}, {0, six, both, "[]"}, {2 * time.Second, six, both, "[IPv4]"}}},
	} {
		var seen seenRules
		at := time.Now()
		for i, l := range tt.looks {
			at = at.Add(l.after)
			if got := fmt.Sprint(seen.observe(at, l.have, l.all)); got != l.want {
				t.Errorf("%s, look %d: %s, want %s", tt.name, i, got, l.want)
			}
		}
	}
}

// TestUnreadable: a kernel that cannot be asked for a while does not say that rules are gone.
func TestUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{Log: slog.New(slog.DiscardHandler), Livez: "127.0.0.1:10256", Kick: func() {}})
		b.find = func(context.Context) sign { return servedBefore }
		start := time.Now()
		b.rules = func() ([]lb.Family, error) {
			if time.Since(start) < 10*time.Second {
				return []lb.Family{lb.IPv4}, nil
			}
			return nil, fmt.Errorf("no buffer space")
		}
		stop := nstest.Running(t, b.Run)
		time.Sleep(time.Minute)
		if stop(); len(b.RulesGone()) > 0 {
			t.Errorf("gone: %v", b.RulesGone())
		}
	})
}

// TestRunStops: also while it waits, without having served.
func TestRunStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{Log: slog.New(slog.DiscardHandler), Livez: "127.0.0.1:10256", Kick: func() { t.Error("it kicks") }})
		b.find = func(context.Context) sign { return unready }
		stop := nstest.Running(t, b.Run)
		time.Sleep(time.Hour)
		if got, want := b.Waiting(), "the server on 127.0.0.1:10256 does not report that it is healthy"; b.Served() ||
			got != want {
			t.Errorf("served %t: %s", b.Served(), got)
		}
		if stop(); b.Served() {
			t.Error("it has served when it was stopped")
		}
	})
}

// TestNoLivez: without kube-proxy nothing is waited for, and what an earlier run left goes.
func TestNoLivez(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, before := range []func() error{marker().CreateEmpty, Forget} {
			must(t, before())
			b := New(Config{Log: slog.New(slog.DiscardHandler)})
			b.find = func(context.Context) sign { t.Error("it looks"); return silent }
			<-b.Looked()
			if err := b.Run(t.Context()); err != nil || !b.Served() || marker().Exists() {
				t.Errorf("%v, served %t, marked %t", err, b.Served(), marker().Exists())
			}
		}
	})
}

// TestLivez asks real servers.
func TestLivez(t *testing.T) {
	answer := func(livez, healthz int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(map[string]int{"/livez": livez, "/healthz": healthz}[r.URL.Path])
		}
	}
	t.Setenv("HTTP_PROXY", "http://192.0.2.1:3128")
	for _, tt := range []struct {
		name   string
		server http.HandlerFunc
		want   sign
	}{
		{"it lives, on a node that is to go", answer(200, 503), live},
		{"it is not well", answer(503, 200), unready},
		{"another program", answer(404, 200), silent},
		{"a server that redirects", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, unready},
		{"it hangs", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, unready},
	} {
		s := httptest.NewServer(tt.server)
		if got := askLivez(t.Context(), s.Listener.Addr().String()); got != tt.want {
			t.Errorf("%s: %s", tt.name, got.describe("it"))
		}
		s.CloseClientConnections()
		s.Close()
		if got := askLivez(t.Context(), s.Listener.Addr().String()); got != silent {
			t.Errorf("%s, and is gone: %s", tt.name, got.describe("it"))
		}
	}
}

// TestStranded: attempts to all lost endpoints are forgotten at the loss of each, and several times after the last one.
func TestStranded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var swept []string
		s := NewSweeper(slog.New(slog.DiscardHandler))
		s.forgetAttempts = func(endpoints map[netip.Addr]bool) (int, error) {
			swept = append(swept, fmt.Sprint(time.Since(start).Milliseconds(), len(endpoints)))
			return 0, fmt.Errorf("no buffer space")
		}
		go func() { _ = s.Run(t.Context()) }()
		for _, step := range []struct {
			at   time.Duration
			lost []string
		}{
			{0, nil}, {0, []string{"10.0.0.1"}}, {500 * time.Millisecond, []string{"10.0.0.1"}},
			{600 * time.Millisecond, []string{"10.0.0.1", "2001:db8::1"}},
			// It serves again, and is lost again.
			{7 * time.Second, []string{"2001:db8::1"}}, {8 * time.Second, []string{"10.0.0.1", "2001:db8::1"}},
			{60 * time.Second, []string{"2001:db8::1"}}, {90 * time.Second, nil},
		} {
			time.Sleep(time.Until(start.Add(step.at)))
			lost := map[netip.Addr]bool{}
			for _, a := range step.lost {
				lost[netip.MustParseAddr(a)] = true
			}
			s.Set(lost)
			synctest.Wait()
		}
		if want := "[0 1 600 2 1600 2 2600 2 5600 2 8000 2 9000 2 10000 2 13000 2 23000 2]"; fmt.Sprint(swept) != want {
			t.Errorf("swept %v, want %s", swept, want)
		}
	})
}

// TestMoved: ended connections to an address are forgotten when its relay begins, once, and again if the kernel refused
// that.
func TestMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var swept []string
		var refusal error
		s := NewSweeper(slog.New(slog.DiscardHandler))
		s.forgetEnded = func(addresses map[netip.Addr]bool) (int, error) {
			if len(addresses) > 0 {
				swept = append(swept, fmt.Sprint(time.Since(start).Milliseconds(), slices.Collect(maps.Keys(addresses))))
			}
			return 0, refusal
		}
		go func() { _ = s.Run(t.Context()) }()
		first := lb.Relay{Address: netip.MustParseAddr("192.0.2.1"), Start: start}
		second := lb.Relay{Address: netip.MustParseAddr("2001:db8::1"), Start: start.Add(time.Minute)}
		inherited := lb.Relay{Address: netip.MustParseAddr("192.0.2.2")}
		for _, relays := range [][]lb.Relay{{inherited, first}, {inherited, first, second}, {first, second}} {
			list := map[netip.Addr]lb.Relay{}
			for _, r := range relays {
				list[r.Address] = r
			}
			s.Relay(lb.MapOf(list), time.Now())
			time.Sleep(time.Minute)
			synctest.Wait()
			refusal = fmt.Errorf("no buffer space")
		}
		want := "[0 [192.0.2.1] 60000 [2001:db8::1] 61000 [2001:db8::1] 62000 [2001:db8::1] 65000 [2001:db8::1] 75000 " +
			"[2001:db8::1]]"
		if fmt.Sprint(swept) != want {
			t.Errorf("swept %v, want %s", swept, want)
		}
	})
}
