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
	// frontendsPort is the port at which a proxy reports the frontends that it serves.
	frontendsPort = 7950
	// pollTime bounds the wait for news of a proxy. It is longer than a proxy holds a request.
	pollTime = 40 * time.Second
	// firstTime bounds the wait for the first answer of a proxy. A speaker that starts waits so long for all of them.
	firstTime = time.Second
	// pause is the time between two requests to a proxy. longPause follows a failed request, and an answer without news
	// that came at once.
	pause     = 20 * time.Millisecond
	longPause = 500 * time.Millisecond
	// leaveTime is the time for which a proxy that terminates serves new connections, until other nodes announce its
	// addresses and all clients have learned that.
	leaveTime = 3 * time.Second
)

// Bounds on what a proxy reports.
const (
	// maxAnswer bounds an answer, in bytes.
	maxAnswer = 4 << 20
	// maxServices bounds the Services of an answer, and maxFaults the Services with a fault.
	maxServices = 4096
	maxFaults   = 512
	// maxHash bounds the hash of an answer, in bytes.
	maxHash = 128
	// maxPods bounds the proxies that are asked.
	maxPods = 16
)

// Asker asks the proxies of this node which frontends they serve, and waits for changes.
type Asker struct {
	log    *slog.Logger
	kick   func()
	client *http.Client
	// ask returns the frontends of a proxy when they differ from the frontends of the hash. Tests replace it.
	ask func(ctx context.Context, at netip.Addr, hash string) (answer, error)
	// podsChanged wakes Run.
	podsChanged lb.Signal

	mu sync.Mutex
	// firstSet is the time of the first Set.
	firstSet time.Time
	// pods are the proxies of the last Set.
	pods []lb.ProxyPod
	// polls has a poll for each pod, by its name.
	polls map[string]*poll
}

// poll is the state of one proxy.
type poll struct {
	// address is one of the pod's addresses. Another pod of the same name has other addresses.
	address netip.Addr
	// leftAt is the time at which the pod began to terminate; zero if it is ready.
	leftAt time.Time
	// answer is the last answer.
	answer answer
	// stop ends the requests; nil before they begin.
	stop context.CancelFunc
}

// answer is the report of a proxy; the zero answer if there is none.
type answer struct {
	hash      string
	frontends map[lb.Key]map[uint16]uint16
	faults    map[lb.Key]lb.Reason
}

// NewAsker returns an Asker that sends nothing before Run. It calls kick when the frontends of a proxy change.
func NewAsker(log *slog.Logger, kick func()) *Asker {
	a := &Asker{
		log:         log,
		kick:        kick,
		podsChanged: lb.NewSignal(),
		polls:       map[string]*poll{},
	}

	// The client connects to the proxy itself: it uses no HTTP proxy of the environment, and follows no redirects.
	dialer := &net.Dialer{Timeout: firstTime}
	a.client = &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives:      true,
			MaxResponseHeaderBytes: 16 << 10,
			DialContext:            dialer.DialContext,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}

	a.ask = func(ctx context.Context, at netip.Addr, hash string) (answer, error) {
		return fetch(ctx, a.client, netip.AddrPortFrom(at, frontendsPort), hash)
	}

	return a
}

// Set sets the proxies of this node.
func (a *Asker) Set(pods []lb.ProxyPod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.firstSet.IsZero() {
		a.firstSet = time.Now()
		time.AfterFunc(firstTime, a.kick)
	}

	a.pods = pods
	hasProxies := len(pods) > 0 || len(a.polls) > 0
	if !hasProxies {
		return
	}

	next := make(map[string]*poll, len(pods))
	for i := range pods {
		pod := &pods[i]
		if len(pod.Addresses) > 0 && len(next) < maxPods {
			next[pod.Name] = a.pollOf(pod)
		}
	}

	a.replacePolls(next)
}

// Pods returns the proxies of this node with the frontends of their last answers. settled is false while a speaker that
// starts waits for the first answers.
func (a *Asker) Pods() (known []lb.ProxyPod, settled bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known = slices.Clone(a.pods)
	settled = true
	for i := range known {
		pod := &known[i]
		pod.Frontends = map[lb.Key]map[uint16]uint16{}
		p := a.polls[pod.Name]
		if p == nil {
			continue
		}

		if p.answer.frontends == nil {
			settled = false
			continue
		}

		isServing := pod.Ready || time.Since(p.leftAt) < leaveTime
		if isServing {
			pod.Frontends = p.answer.frontends
		}
	}

	isLate := time.Since(a.firstSet) >= firstTime
	return known, settled || isLate
}

// pollOf returns the poll of a pod: the present one, or a new one.
func (a *Asker) pollOf(pod *lb.ProxyPod) *poll {
	p := a.polls[pod.Name]
	// The pod's address of the other family may appear later.
	isSame := p != nil && slices.Contains(pod.Addresses, p.address)
	if !isSame {
		p = &poll{address: pod.Addresses[0]}
	}

	switch {
	case pod.Ready:
		p.leftAt = time.Time{}
	case p.leftAt.IsZero():
		p.leftAt = time.Now()
		time.AfterFunc(leaveTime, a.kick)
	}

	return p
}

// replacePolls replaces the polls, and stops those that are gone.
func (a *Asker) replacePolls(next map[string]*poll) {
	for name, p := range a.polls {
		if next[name] != p && p.stop != nil {
			p.stop()
		}
	}

	a.polls = next
	a.podsChanged.Kick()
}

// Faults returns the reasons for which the proxies of this node do not serve Services as they ask. Of several reasons
// for a Service it returns the first in the order of their names.
func (a *Asker) Faults() map[lb.Key]lb.Reason {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[lb.Key]lb.Reason{}
	for _, p := range a.polls {
		isLeaving := !p.leftAt.IsZero()
		if isLeaving {
			continue
		}

		for key, fault := range p.answer.faults {
			if out[key] == "" || fault < out[key] {
				out[key] = fault
			}
		}
	}

	return out
}

// Run asks the proxies until ctx ends.
func (a *Asker) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.podsChanged:
		}

		a.startPolls(ctx, &group)
	}
}

// startPolls starts the requests to new proxies.
func (a *Asker) startPolls(ctx context.Context, group *sync.WaitGroup) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, p := range a.polls {
		if p.stop != nil {
			continue
		}

		polling, stop := context.WithCancel(ctx)
		p.stop = stop
		group.Go(func() { a.follow(polling, name, p) })
	}
}

// follow asks one proxy again and again until ctx ends.
func (a *Asker) follow(ctx context.Context, name string, p *poll) {
	hash := ""
	isFailing := false
	for ctx.Err() == nil {
		timeout := pollTime
		if hash == "" {
			timeout = firstTime
		}

		start := time.Now()
		asking, cancel := context.WithTimeout(ctx, timeout)
		got, err := a.ask(asking, p.address, hash)
		cancel()
		if ctx.Err() != nil {
			return
		}

		if err != nil && !isFailing {
			a.log.Warn(
				"a proxy does not report its frontends; its last answer applies as long as it is ready",
				"pod", name,
				"address", p.address,
				"error", err,
			)
		}

		if err == nil && a.setAnswer(p, got) {
			a.kick()
		}

		wait := pause
		isEarly := got.hash == hash && time.Since(start) < longPause
		if err != nil || isEarly {
			wait = longPause
		}

		isFailing = err != nil
		hash = got.hash // "" after an error: the next request returns at once
		nft.Sleep(ctx, wait)
	}
}

// setAnswer sets the answer of a proxy, and reports whether a plan may depend on the difference.
func (a *Asker) setAnswer(p *poll, got answer) (hasChanged bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := p.answer
	p.answer = got
	isFirst := before.frontends == nil
	sameFrontends := maps.EqualFunc(got.frontends, before.frontends, maps.Equal[map[uint16]uint16, map[uint16]uint16])
	return isFirst || !sameFrontends || !maps.Equal(got.faults, before.faults)
}

// fetch asks a proxy for its frontends. The answer comes from a pod, so it is only accepted within bounds.
func fetch(ctx context.Context, client *http.Client, at netip.AddrPort, hash string) (answer, error) {
	target := url.URL{
		Scheme: "http",
		Host:   at.String(),
		Path:   "/frontends",
	}

	if hash != "" {
		target.RawQuery = url.Values{"after": {hash}}.Encode()
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
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

// serviceName matches NAMESPACE/NAME of a Service.
var serviceName = regexp.MustCompile("^[a-z0-9-]{1,63}/[a-z0-9-]{1,63}$")

// parse reads an answer. It takes the first Services in the order of their names, and only valid ports.
func parse(body []byte) (answer, error) {
	if len(body) > maxAnswer {
		return answer{}, fmt.Errorf("its answer has more than %d octets", maxAnswer)
	}

	var text struct {
		Hash      string                    `json:"hash"`
		Frontends map[string]map[string]int `json:"frontends"`
		Faults    map[string]lb.Reason      `json:"faults"`
	}

	err := json.Unmarshal(body, &text)
	if err != nil {
		return answer{}, fmt.Errorf("read its answer: %w", err)
	}

	if text.Hash == "" || len(text.Hash) > maxHash {
		return answer{}, errors.New("its answer has no hash")
	}

	return answer{
		hash:      text.Hash,
		frontends: parseFrontends(text.Frontends),
		faults:    parseFaults(text.Faults),
	}, nil
}

// parseFrontends returns the ports of the proxy by Service and port.
func parseFrontends(frontends map[string]map[string]int) map[lb.Key]map[uint16]uint16 {
	out := map[lb.Key]map[uint16]uint16{}
	for _, name := range slices.Sorted(maps.Keys(frontends)) {
		if strings.Contains(name, "/") && len(out) < maxServices {
			out[lb.ParseKey(name)] = parsePorts(frontends[name])
		}
	}

	return out
}

// parsePorts returns the valid ports of a Service, with the ports of the proxy.
func parsePorts(ports map[string]int) map[uint16]uint16 {
	out := map[uint16]uint16{}
	for port, target := range ports {
		n, err := strconv.ParseUint(port, 10, 16)
		isPort := err == nil && n > 0
		isTarget := target > 0 && target <= math.MaxUint16
		if isPort && isTarget {
			out[uint16(n)] = uint16(target)
		}
	}

	return out
}

// parseFaults returns the reasons that a proxy may give.
func parseFaults(faults map[string]lb.Reason) map[lb.Key]lb.Reason {
	out := map[lb.Key]lb.Reason{}
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		fault := faults[name]
		isValid := serviceName.MatchString(name) && fault.OfProxy()
		if isValid && len(out) < maxFaults {
			out[lb.ParseKey(name)] = fault
		}
	}

	return out
}
