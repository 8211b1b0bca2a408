package divert

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

var web = lb.Key{Namespace: "default", Name: "web"}

// proxy answers as one does, to as many questions as it is asked.
type proxy struct {
	news chan answer
	fail atomic.Bool
}

func (p *proxy) ask(ctx context.Context, _ netip.Addr, hash string) (answer, error) {
	if p.fail.Load() {
		return answer{}, errors.New("refused")
	}
	select {
	case a := <-p.news:
		if a.hash == hash {
			return answer{}, errors.New("asked again for what it told")
		}
		return a, nil
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}

func serving(hash string, ports ...uint16) answer {
	a := answer{hash: hash, frontends: map[lb.Key]map[uint16]uint16{web: {}}}
	for _, port := range ports {
		a.frontends[web][port] = 30000 + port
	}
	return a
}

// TestAsker: a start waits for first answers, but not long; news kick; an answer lasts as long as the pod serves.
func TestAsker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &proxy{news: make(chan answer)}
		var kicks atomic.Int64
		a := NewAsker(slog.New(slog.DiscardHandler), func() { kicks.Add(1) })
		a.ask = p.ask
		nstest.Running(t, a.Run)
		pods := []lb.ProxyPod{{Name: "p", Node: "n", Ready: true, Addresses: []netip.Addr{netip.MustParseAddr("10.244.0.2")}}}
		check := func(when string, want map[uint16]uint16, wantSettled bool, wantKicks int64) {
			t.Helper()
			synctest.Wait()
			a.Set(pods)
			known, settled := a.Pods()
			if got := known[0].Frontends[web]; !maps.Equal(got, want) || known[0].Frontends == nil || settled != wantSettled ||
				kicks.Load() != wantKicks {
				t.Errorf("%s: serves %v, settled %v, %d kicks; want %v, %v, %d", when, known[0].Frontends, settled, kicks.Load(),
					want, wantSettled, wantKicks)
			}
		}
		check("before any answer", nil, false, 0)
		p.news <- serving("1", 80)
		check("first answer", map[uint16]uint16{80: 30080}, true, 1)
		if pods[0].Frontends != nil {
			t.Error("the argument was changed, which is the compiler's")
		}
		time.Sleep(time.Second)
		p.news <- serving("2", 80, 443)
		both := map[uint16]uint16{80: 30080, 443: 30443}
		check("news", both, true, 3)
		time.Sleep(time.Second)
		p.news <- serving("3", 80, 443)
		check("other settings of the same ports", both, true, 3)
		time.Sleep(time.Second)
		fault := serving("4", 80, 443)
		fault.faults = map[lb.Key]lb.Reason{web: lb.SecretMissing}
		p.news <- fault
		check("a fault", both, true, 4)
		p.fail.Store(true)
		time.Sleep(10 * pollTime)
		check("it cannot be asked", both, true, 4)
		if got := a.Faults(); !maps.Equal(got, fault.faults) {
			t.Errorf("faults %v", got)
		}
		pods[0].Ready = false
		check("it terminates", both, true, 4)
		if got := a.Faults(); len(got) > 0 {
			t.Errorf("faults %v of a pod that terminates", got)
		}
		time.Sleep(leaveTime)
		check("others serve by now", nil, true, 5)
		pods[0].Ready = true
		check("it is ready after all", both, true, 5)
		pods[0].Addresses = []netip.Addr{netip.MustParseAddr("10.244.0.9")}
		check("another pod of the name", nil, true, 5)
		p.fail.Store(false)
		time.Sleep(firstTime)
		p.news <- serving("5", 80)
		check("it answers", map[uint16]uint16{80: 30080}, true, 6)
		pods[0].Addresses = append([]netip.Addr{netip.MustParseAddr("10.244.0.1")}, pods[0].Addresses...)
		check("it has an address of the other family, which is first", map[uint16]uint16{80: 30080}, true, 6)
		a.Set(nil)
		time.Sleep(time.Second)
		select {
		case p.news <- serving("6"):
			t.Error("a pod that is gone is asked")
		default:
		}
	})
}

// TestAskerLate: a proxy that does not answer keeps a speaker from its work for a moment only.
func TestAskerLate(t *testing.T) {
	for name, refuses := range map[string]bool{"hangs": false, "refuses": true} {
		p := &proxy{}
		p.fail.Store(refuses)
		synctest.Test(t, func(t *testing.T) {
			kicked := make(chan bool, 9)
			a := NewAsker(slog.New(slog.DiscardHandler), func() { kicked <- true })
			a.ask = p.ask
			nstest.Running(t, a.Run)
			pods := []lb.ProxyPod{{Name: "p", Ready: true, Addresses: []netip.Addr{netip.MustParseAddr("fd00::2")}}}
			a.Set(pods)
			if _, settled := a.Pods(); settled {
				t.Errorf("%s: nothing is known and settled", name)
			}
			start := time.Now()
			<-kicked
			if _, settled := a.Pods(); !settled || time.Since(start) > firstTime {
				t.Errorf("%s: settled %v after %v", name, settled, time.Since(start))
			}
			more := append(pods, lb.ProxyPod{Name: "q", Ready: true, Addresses: []netip.Addr{netip.MustParseAddr("fd00::3")}})
			time.Sleep(firstTime)
			a.Set(more)
			if _, settled := a.Pods(); !settled {
				t.Errorf("%s: a new pod keeps a speaker that runs from its work", name)
			}
		})
	}
}

// TestFetch: what answers is a pod, and may be hostile.
func TestFetch(t *testing.T) {
	whole := `{"hash": "h", "frontends": {"default/web": {"80": 31080, "443": 31443}}}`
	many := &strings.Builder{}
	for i := range maxServices + 10 {
		fmt.Fprintf(many, `,"n/%06d":{}`, i)
	}
	for _, tt := range []struct {
		name, body string
		status     int
		want       int // Services, -1 for an error
	}{
		{"an answer", whole, 200, 1},
		{"none serves", `{"hash": "", "frontends": {}}`, 200, -1},
		{"a long hash", `{"hash": "` + strings.Repeat("x", 200) + `"}`, 200, -1},
		{"an error", whole, 500, -1},
		{"a redirect", whole, 302, -1},
		{"no JSON", "x", 200, -1},
		{"too long", whole + strings.Repeat(" ", maxAnswer), 200, -1},
		{"too many Services", `{"hash": "h", "frontends": {` + many.String()[1:] + `}}`, 200, maxServices},
		{
			"no Services and no ports",
			`{"hash": "h", "frontends": {"web": {}, "a/b": {"0": 1, "70000": 1, "80": 0, "81": 65536, "82": -1, "x": 3}}}`,
			200, 1,
		},
		{"ports of another kind", `{"hash": "h", "frontends": {"a/b": {"80": "81"}}}`, 200, -1},
		{
			"faults",
			`{"hash": "h", "frontends": {}, "faults": {"default/web": "SecretMissing", "a/b": "my own words", "x": "KeyWrong", "a/B": "KeyWrong"}}`,
			200, 0,
		},
		{"too many faults", `{"hash": "h", "faults": {` + strings.ReplaceAll(many.String()[1:], "{}", `"KeyWrong"`) + `}}`,
			200, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked []string
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.URL.String())
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.body))
			}))
			defer s.Close()
			a := NewAsker(slog.New(slog.DiscardHandler), func() {})
			if a.client.Transport.(*http.Transport).Proxy != nil {
				t.Error("the environment's HTTP proxy may answer")
			}
			got, err := fetch(t.Context(), a.client, netip.MustParseAddrPort(s.Listener.Addr().String()), "a b")
			if (err != nil) != (tt.want < 0) || err == nil && len(got.frontends) != tt.want {
				t.Errorf("%d Services, %v", len(got.frontends), err)
			}
			if diff := cmp.Diff([]string{"/frontends?after=a+b"}, asked); diff != "" {
				t.Error(diff)
			}
			if ports := got.frontends[web]; tt.name == "an answer" &&
				!maps.Equal(ports, map[uint16]uint16{80: 31080, 443: 31443}) {
				t.Errorf("ports %v", ports)
			}
			if tt.name == "faults" && !maps.Equal(got.faults, map[lb.Key]lb.Reason{web: lb.SecretMissing}) ||
				len(got.faults) > maxFaults {
				t.Errorf("faults %v", got.faults)
			}
			if ports := got.frontends[lb.Key{Namespace: "a", Name: "b"}]; len(ports) != 0 {
				t.Errorf("ports that are none: %v", ports)
			}
		})
	}
}
