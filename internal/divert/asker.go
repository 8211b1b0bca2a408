package divert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

const (
	// frontendsPort is where a proxy says what it serves.
	frontendsPort = 7950
	// pollTime is longer than a proxy waits for news, firstTime the wait for a first answer, and of a speaker that
	// starts for all of them.
	pollTime  = 40 * time.Second
	firstTime = time.Second
	// pause is between two questions to a proxy, and longPause after a question that failed, or an answer that is no
	// news and came at once.
	pause     = 20 * time.Millisecond
	longPause = 500 * time.Millisecond
	// leaveTime is how long a proxy that terminates serves what still comes, until others announce its addresses and
	// all clients know.
	leaveTime = 3 * time.Second
	// maxAnswer bounds an answer in octets, maxServices its Services, maxFaults those with a fault, maxHash its hash,
	// and maxPods the proxies that are asked.
	maxAnswer   = 4 << 20
	maxServices = 4096
	maxFaults   = 512
	maxHash     = 128
	maxPods     = 16
)

// Asker asks the proxies of this node which frontends they serve, and waits for news at each.
type Asker struct {
	log    *slog.Logger
	kick   func()
	client *http.Client
	// ask returns what a proxy serves, once that is no longer what the hash stands for. Tests replace it.
	ask func(ctx context.Context, at netip.Addr, hash string) (answer, error)
	// more is signalled when the pods have changed.
	more lb.Signal

	mu sync.Mutex
	// began is when Set was called first.
	began time.Time
	// polls by the name of the pod.
	polls map[string]*poll
}

// poll is what is known of one proxy.
type poll struct {
	// address that is asked, of several. Another pod of the name has others.
	address netip.Addr
	// leaves is when the pod began to terminate; zero if it is ready.
	leaves time.Time
	answer answer // the last one
	// stop ends the questions; nil before they begin.
	stop context.CancelFunc
}

// answer is what a proxy says; the zero answer of none.
type answer struct {
	hash      string
	frontends map[lb.Key]map[uint16]uint16
	faults    map[lb.Key]lb.Reason
}

// NewAsker returns an Asker that asks nothing before Run, and calls kick when a proxy serves something else.
func NewAsker(log *slog.Logger, kick func()) *Asker {
	a := &Asker{log: log, kick: kick, more: lb.NewSignal(), polls: map[string]*poll{}}
	// It talks to the proxy itself: not by the environment's HTTP proxy, and not where the answer points to.
	a.client = &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives:      true,
			MaxResponseHeaderBytes: 16 << 10,
			DialContext:            (&net.Dialer{Timeout: firstTime}).DialContext,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	a.ask = func(ctx context.Context, at netip.Addr, hash string) (answer, error) {
		return fetch(ctx, a.client, netip.AddrPortFrom(at, frontendsPort), hash)
	}
	return a
}

// Set names the proxies of this node, and returns them with what each serves by its last answer. It reports false while
// a speaker that starts still waits for the first answers.
func (a *Asker) Set(pods []lb.ProxyPod) (known []lb.ProxyPod, settled bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.began.IsZero() {
		a.began = time.Now()
		time.AfterFunc(firstTime, a.kick)
	}
	if len(pods)+len(a.polls) == 0 {
		return nil, true // as mostly
	}
	next := make(map[string]*poll, len(pods))
	known, settled = slices.Clone(pods), true
	for i := range known {
		pod := &known[i]
		pod.Frontends = map[lb.Key]map[uint16]uint16{}
		if len(pod.Addresses) == 0 || len(next) == maxPods {
			continue
		}
		p := a.polls[pod.Name]
		if p == nil || !slices.Contains(pod.Addresses, p.address) { // the slice of the other family may come later
			p = &poll{address: pod.Addresses[0]}
		}
		if pod.Ready {
			p.leaves = time.Time{}
		} else if p.leaves.IsZero() {
			p.leaves = time.Now()
			time.AfterFunc(leaveTime, a.kick)
		}
		next[pod.Name] = p
		if p.answer.frontends != nil && (pod.Ready || time.Since(p.leaves) < leaveTime) {
			pod.Frontends = p.answer.frontends
		}
		settled = settled && p.answer.frontends != nil
	}
	for name, p := range a.polls {
		if next[name] != p && p.stop != nil {
			p.stop()
		}
	}
	a.polls = next
	a.more.Kick()
	return known, settled || time.Since(a.began) >= firstTime
}

// Faults returns what keeps the proxies of this node from serving Services as they ask: of several the first by name.
func (a *Asker) Faults() map[lb.Key]lb.Reason {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[lb.Key]lb.Reason{}
	for _, p := range a.polls {
		for key, fault := range p.answer.faults {
			if p.leaves.IsZero() && (out[key] == "" || fault < out[key]) {
				out[key] = fault
			}
		}
	}
	return out
}

// Run asks until ctx ends.
func (a *Asker) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.more:
		}
		a.mu.Lock()
		for name, p := range a.polls {
			if p.stop == nil {
				of, stop := context.WithCancel(ctx)
				p.stop = stop
				group.Go(func() { a.follow(of, name, p) })
			}
		}
		a.mu.Unlock()
	}
}

// follow asks one proxy until ctx ends.
func (a *Asker) follow(ctx context.Context, name string, p *poll) {
	failing, hash := false, ""
	for ctx.Err() == nil {
		limit := pollTime
		if hash == "" {
			limit = firstTime
		}
		sent := time.Now()
		asking, cancel := context.WithTimeout(ctx, limit)
		got, err := a.ask(asking, p.address, hash)
		cancel()
		if ctx.Err() != nil {
			return
		}
		wait := pause
		if err != nil || got.hash == hash && time.Since(sent) < longPause {
			wait = longPause
		}
		if err != nil && !failing {
			a.log.Warn(
				"a proxy does not say what it serves; its last answer holds as long as it is ready",
				"pod",
				name,
				"address",
				p.address,
				"error",
				err,
			)
		}
		failing, hash = err != nil, got.hash // "" after a failure: the next answer is not waited for
		if err == nil && a.learn(p, got) {
			a.kick()
		}
		nft.Sleep(ctx, wait)
	}
}

// learn notes an answer, and reports whether a plan may depend on it.
func (a *Asker) learn(p *poll, got answer) (news bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	news = p.answer.frontends == nil ||
		!maps.EqualFunc(got.frontends, p.answer.frontends, maps.Equal[map[uint16]uint16, map[uint16]uint16]) ||
		!maps.Equal(got.faults, p.answer.faults)
	p.answer = got
	return news
}

// fetch asks a proxy. What answers is a pod: nothing of the answer is believed but within its bounds.
func fetch(ctx context.Context, client *http.Client, at netip.AddrPort, hash string) (answer, error) {
	to := url.URL{Scheme: "http", Host: at.String(), Path: "/frontends"}
	if hash != "" {
		to.RawQuery = url.Values{"after": {hash}}.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return answer{}, err
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return answer{}, fmt.Errorf("it answers %d", response.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return answer{}, fmt.Errorf("read its answer: %w", err)
	}
	return parse(body)
}

var serviceName = regexp.MustCompile("^[a-z0-9-]{1,63}/[a-z0-9-]{1,63}$")

// parse reads an answer: the first Services by name, with ports that are ports.
func parse(body []byte) (answer, error) {
	var text struct {
		Hash      string                    `json:"hash"`
		Frontends map[string]map[string]int `json:"frontends"`
		Faults    map[string]lb.Reason      `json:"faults"`
	}
	if len(body) > maxAnswer {
		return answer{}, fmt.Errorf("its answer has more than %d octets", maxAnswer)
	}
	if err := json.Unmarshal(body, &text); err != nil {
		return answer{}, fmt.Errorf("read its answer: %w", err)
	}
	if text.Hash == "" || len(text.Hash) > maxHash {
		return answer{}, errors.New("its answer has no hash")
	}
	out := answer{hash: text.Hash, frontends: map[lb.Key]map[uint16]uint16{}, faults: map[lb.Key]lb.Reason{}}
	for _, name := range slices.Sorted(maps.Keys(text.Faults)) {
		if fault := text.Faults[name]; serviceName.MatchString(name) &&
			fault.OfProxy() &&
			len(out.faults) < maxFaults {
			out.faults[lb.ParseKey(name)] = fault
		}
	}
	for _, name := range slices.Sorted(maps.Keys(text.Frontends)) {
		if !strings.Contains(name, "/") || len(out.frontends) == maxServices {
			continue
		}
		ports := map[uint16]uint16{}
		for of, at := range text.Frontends[name] {
			if n, err := strconv.ParseUint(of, 10, 16); err == nil && n > 0 && at > 0 && at <= math.MaxUint16 {
				ports[uint16(n)] = uint16(at)
			}
		}
		out.frontends[lb.ParseKey(name)] = ports
	}
	return out, nil
}
