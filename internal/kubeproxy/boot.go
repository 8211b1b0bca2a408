// Package kubeproxy makes up for what kube-proxy does later than Holdfast.
//
//	Boot       whether kube-proxy has served since this node started, and whether its rules are still there
//	Endpoints  for which Services kube-proxy does not serve the endpoints on this node yet
//	HeadStart  leads connections to the endpoints of new addresses until kube-proxy does
//	Sweeper    forgets connection attempts that kube-proxy sent to endpoints on dead nodes, and ended connections to addresses
//	           that move here
//
// The package takes no decisions, and changes no tables but its own.
package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

const (
	// interval is the time between two checks before kube-proxy has served, rulesInterval between two later ones. A
	// check takes a millisecond.
	interval, rulesInterval = 250 * time.Millisecond, 500 * time.Millisecond
	// lossTime is how long rules must be missing: a kube-proxy that starts in another mode removes the rules of the
	// former mode before it makes its own.
	lossTime = 2 * time.Second
)

// Config is what a Boot needs.
type Config struct {
	Log *slog.Logger
	// Livez is host and port of kube-proxy's health endpoint; "" without kube-proxy: the Boot does not wait, and
	// forgets that one has served.
	Livez string
	// Kick is called when kube-proxy has served, and when its rules are gone or back.
	Kick func()
}

// Boot is the time between the start of a node and its kube-proxy's first service. Until then the node must not
// announce any address, because it cannot forward the traffic. Afterwards kube-proxy's rules stay in the kernel while
// it restarts. A Boot that saw rules notices when they are gone, as after "nft flush ruleset": kube-proxy may take up
// to an hour to make them again.
type Boot struct {
	config Config
	// find looks for a sign of kube-proxy, and rules for the families that have its rules. Tests replace both.
	find  func(context.Context) sign
	rules func() ([]lb.Family, error)
	// looked is closed after the first check.
	looked chan struct{}
	// last is the sign of the last check.
	last   atomic.Int32
	served atomic.Bool
	// gone are the families whose rules are gone; nil for none.
	gone atomic.Pointer[[]lb.Family]
}

// New returns a Boot that has not checked yet.
func New(c Config) *Boot {
	b := &Boot{config: c, looked: make(chan struct{}), rules: ruled}
	b.find = func(ctx context.Context) sign { return look(ctx, c.Livez) }
	if c.Livez == "" {
		b.served.Store(true)
		close(b.looked)
	}

	return b
}

// Served reports whether kube-proxy has served since the node started, as far as the signs show.
func (b *Boot) Served() bool { return b.served.Load() }

// RulesGone returns the families whose rules were in the kernel and are gone.
func (b *Boot) RulesGone() []lb.Family {
	if gone := b.gone.Load(); gone != nil {
		return *gone
	}
	return nil
}

// Looked returns a channel that is closed after the first check; before that, Served has no meaning.
func (b *Boot) Looked() <-chan struct{} { return b.looked }

// Waiting describes the last sign of kube-proxy.
func (b *Boot) Waiting() string {
	if b.config.Livez == "" {
		return "it is not waited for"
	}

	if gone := b.RulesGone(); len(gone) > 0 {
		return fmt.Sprintf("its rules are gone from the kernel: %s", lb.SomeOf(gone))
	}

	return sign(b.last.Load()).describe(b.config.Livez)
}

// Run checks until ctx ends.
func (b *Boot) Run(ctx context.Context) error {
	if b.config.Livez == "" {
		if marker().Exists() {
			return Forget()
		}

		return nil
	}

	var seen seenRules
	b.await(ctx, &seen)
	if b.Served() {
		b.watch(ctx, &seen)
	}

	return nil
}

// await checks until kube-proxy has served, or ctx ends. It records the rules that there are then.
func (b *Boot) await(ctx context.Context, rules *seenRules) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	start := time.Now()
	var seen steadySign
	for first := true; ; first = false {
		is := b.find(ctx)
		if ctx.Err() != nil {
			return
		}

		was := sign(b.last.Swap(int32(is)))
		over := seen.observe(time.Now(), is)
		if over {
			b.observe(rules) // first: from now on rules that are gone count
			b.pass(is, time.Since(start))
		} else if first || is != was {
			b.config.Log.Info("waiting for kube-proxy; this node announces nothing until kube-proxy has served", "found", b.Waiting())
		}

		if first {
			close(b.looked)
		}

		if over {
			b.config.Kick()
			return
		}

		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// watch checks whether the rules that were seen are still there, until ctx ends.
func (b *Boot) watch(ctx context.Context, seen *seenRules) {
	tick := time.NewTicker(rulesInterval)
	defer tick.Stop()
	for {
		b.observe(seen)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// observe looks at the rules, and records whether some that were seen are gone.
func (b *Boot) observe(seen *seenRules) {
	have, err := b.rules()
	if err != nil {
		return // the next look may know
	}
	b.setGone(seen.observe(time.Now(), have, families()))
}

// setGone records the families whose rules are gone. The next speaker is not to count on rules that are gone.
func (b *Boot) setGone(gone []lb.Family) {
	before := b.RulesGone()
	if slices.Equal(before, gone) {
		return
	}

	b.gone.Store(&gone)
	b.config.Kick()

	record := Forget
	if len(gone) > 0 {
		b.config.Log.Error(
			"the rules of kube-proxy are gone; this node leaves its addresses to nodes that have them",
			"families",
			gone,
		)
	} else {
		b.config.Log.Info("the rules of kube-proxy are back", "families", before)
		record = marker().CreateEmpty
	}

	if err := record(); err != nil {
		b.config.Log.Warn(
			"the record that kube-proxy has served is wrong for the next speaker on this node",
			"error",
			err,
		)
	}
}

func (b *Boot) pass(by sign, after time.Duration) {
	b.served.Store(true)
	b.config.Log.Info("kube-proxy has served", "found", b.Waiting(), "after", after.Round(time.Millisecond))
	if by == servedBefore {
		return
	}

	if err := marker().CreateEmpty(); err != nil {
		b.config.Log.Warn("the next speaker on this node will wait for kube-proxy again", "error", err)
	}
}

// Where kube-proxy's rules are. In mode nftables kube-proxy makes its table and the rules in one transaction. In modes
// iptables and IPVS (visible if iptables uses nf_tables) it makes its first chains and the jump to them before their
// rules, and iptablesChain together with these. A firewall's tool that flushes rules may leave the chains.
const (
	nftablesTable, nftablesHook, nftablesServices = "kube-proxy", "nat-prerouting", "services"
	iptablesTable, iptablesHook, iptablesServices = "nat", "PREROUTING", "KUBE-SERVICES"
	iptablesChain                                 = "KUBE-MARK-MASQ"
)

// markerTable is an empty table that records that kube-proxy has served. It survives restarts of the speaker, but not
// of the node.
const markerTable = "holdfast-booted"

func marker() nft.Table { return nft.Table{Family: unix.NFPROTO_INET, Name: markerTable} }

// look returns the strongest sign of kube-proxy, whose health endpoint is at livez.
func look(ctx context.Context, livez string) sign {
	if seen := rules(); seen >= oneFamily {
		return seen
	}
	return askLivez(ctx, livez)
}

// rules returns the strongest sign in the kernel, silent without any. It takes an unreadable table for a missing one.
func rules() sign {
	if marker().Exists() {
		return servedBefore
	}

	switch found, _ := ruled(); len(found) {
	case 0:
		return silent
	case len(families()):
		return allFamilies
	}

	return oneFamily
}

// ruled returns the families for which kube-proxy's rules are in the kernel, and lead packets to Services.
func ruled() (found []lb.Family, err error) {
	for _, f := range families() {
		has, fault := hasRules(f)
		if has {
			found = append(found, f)
		}

		err = errors.Join(err, fault)
	}

	return found, err
}

func hasRules(f lb.Family) (bool, error) {
	number := byte(unix.NFPROTO_IPV4)
	if f == lb.IPv6 {
		number = unix.NFPROTO_IPV6
	}

	own := nft.Table{Family: number, Name: nftablesTable}
	if _, err := own.Handle(); err == nil {
		// A table of another layout counts: it is some version's.
		if known, err := own.HasChain(nftablesHook); !known {
			return err == nil, err
		}

		if has, err := own.HasJump(nftablesHook, nftablesServices); has || err != nil {
			return has, err
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return false, err
	}

	shared := nft.Table{Family: number, Name: iptablesTable}
	if has, err := shared.HasChain(iptablesChain); !has {
		return false, err
	}

	return shared.HasJump(iptablesHook, iptablesServices)
}

// families returns the families that kube-proxy makes rules for: all that the node's kernel has enabled, whatever the
// families of the cluster.
func families() []lb.Family {
	out := []lb.Family{lb.IPv4}
	_, err := os.Stat("/proc/net/if_inet6")
	off, _ := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	if err == nil && strings.TrimSpace(string(off)) != "1" {
		out = append(out, lb.IPv6)
	}

	return out
}

// Forget deletes the record that kube-proxy has served, so that an uninstalled speaker leaves nothing behind.
func Forget() error { return marker().Delete() }

// sign is an observation of kube-proxy, the stronger ones last.
type sign int32

const (
	// silent: nothing listens on the address of kube-proxy.
	silent sign = iota
	// unready: a server listens, and does not report that it is healthy.
	unready
	// live: it reports that it is healthy. kube-proxy does so from its start, before it has made any rule.
	live
	// oneFamily: its rules exist for one of the node's families.
	oneFamily
	// allFamilies: its rules exist for all families of the node.
	allFamilies
	// servedBefore: an earlier speaker recorded that kube-proxy has served since the node started.
	servedBefore
)

// never is longer than any sign lasts.
const never = time.Duration(math.MaxInt64)

// signs are how long each sign must last before the node counts as served, and a clause for logs and conditions.
var signs = [...]struct {
	lasts time.Duration
	text  string
}{
	// On nodes without kube-proxy an unknown program serves, which has no health endpoint here.
	silent:  {30 * time.Second, "nothing listens on ADDRESS"},
	unready: {never, "the server on ADDRESS does not report that it is healthy"},
	// If its rules are invisible (iptables without nf_tables, another proxy in its place), allow the time to read all
	// Services.
	live: {10 * time.Second, "it answers on ADDRESS, but its rules are not visible"},
	// kube-proxy treats its families independently, and may never make the rules of one.
	oneFamily:    {2 * time.Second, "its rules exist for one IP family"},
	allFamilies:  {0, "its rules are in the kernel"},
	servedBefore: {0, "it has served since the node started"},
}

// describe returns the clause of a sign, with the address of kube-proxy's health endpoint.
func (s sign) describe(address string) string {
	return strings.Replace(signs[s].text, "ADDRESS", address, 1)
}

// steadySign is a sign and the time of its first observation in a row. It is pure: the time is an argument.
type steadySign struct {
	sign  sign
	since time.Time
}

// observe records a sign, and reports whether it has lasted long enough.
func (l *steadySign) observe(now time.Time, is sign) bool {
	if l.since.IsZero() || is != l.sign {
		*l = steadySign{is, now}
	}
	return now.Sub(l.since) >= signs[is].lasts
}

// seenRules are the families whose rules were seen. It is pure: the time is an argument.
type seenRules struct {
	families []lb.Family
	// missing is when rules of one of them were first found missing; the zero Time while all are there.
	missing time.Time
}

// observe records which of a node's families have rules, and returns those whose rules have been missing for long
// enough. A family counts that the node still has.
func (s *seenRules) observe(now time.Time, have, all []lb.Family) (gone []lb.Family) {
	for _, f := range all {
		switch {
		case slices.Contains(have, f):
			if !slices.Contains(s.families, f) {
				s.families = append(s.families, f)
			}
		case slices.Contains(s.families, f):
			gone = append(gone, f)
		}
	}

	switch {
	case len(gone) == 0:
		s.missing = time.Time{}
	case s.missing.IsZero():
		s.missing = now
	}

	if now.Sub(s.missing) < lossTime {
		return nil
	}

	return gone
}

// requestTimeout limits one HTTP request to kube-proxy.
const requestTimeout = time.Second

// newClient returns a client that talks to kube-proxy itself: it ignores redirects and the environment's proxy
// settings.
func newClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout:       timeout,
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// get requests a page of kube-proxy, and reports whether a server listens there.
func get(ctx context.Context, client *http.Client, page string) (response *http.Response, listens bool, err error) {
	ctx = httptrace.WithClientTrace(
		ctx,
		&httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { listens = true }},
	)

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+page, nil)
	if err == nil {
		response, err = client.Do(request)
	}

	return response, listens, err
}

// askLivez requests the health of kube-proxy at host and port. A server without the path is not kube-proxy.
func askLivez(ctx context.Context, address string) sign {
	response, listens, err := get(ctx, newClient(requestTimeout), address+"/livez")
	if err != nil && !listens {
		return silent
	}

	if err != nil {
		return unready
	}

	_ = response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return live
	case http.StatusNotFound:
		return silent
	}

	return unready
}
