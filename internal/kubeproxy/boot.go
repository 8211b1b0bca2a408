// Package kubeproxy observes kube-proxy on this node, and serves in its place until it is up to date.
//
//	Boot       observes whether kube-proxy has served since the node started, and whether its rules exist
//	Endpoints  finds the Services whose endpoints on this node kube-proxy does not serve yet
//	HeadStart  translates connections to new addresses until kube-proxy does
//	Sweeper    deletes the conntrack entries of attempts to reach endpoints on dead nodes, and of ended
//	           connections to addresses that move here
//
// Each has a Run, and those with a desired state have a Set:
//
//	boot := kubeproxy.New(kubeproxy.Config{Log: log, Livez: "127.0.0.1:10256", Kick: kick})
//	go boot.Run(ctx)
//	if boot.Served() && len(boot.RulesGone()) == 0 { … } // the node can forward
//
// The package takes no decisions. It changes no nftables table but its own two.
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
	// interval is the time between two checks before kube-proxy has served. A check takes a millisecond.
	interval = 250 * time.Millisecond
	// rulesInterval is the time between two checks afterwards.
	rulesInterval = 500 * time.Millisecond
	// lossTime is the time for which rules must be missing to count as gone: a kube-proxy that starts in another mode
	// removes the rules of the former mode before it makes its own.
	lossTime = 2 * time.Second
)

// Config configures a Boot.
type Config struct {
	Log *slog.Logger
	// Livez is the host and port of kube-proxy's health endpoint. It is empty on a node without kube-proxy: then the
	// Boot does not wait, and deletes the record that one has served.
	Livez string
	// Kick is called when kube-proxy has served, and when its rules are gone or back.
	Kick func()
}

// Boot observes whether kube-proxy has served since the node started. Until then the node must not announce any
// address, because it cannot forward the traffic. Afterwards kube-proxy's rules stay in the kernel while kube-proxy
// restarts.
//
// Boot also detects when the rules are gone, as after "nft flush ruleset": kube-proxy may take up to an hour to make
// them again.
type Boot struct {
	config Config
	// find returns the strongest sign of kube-proxy, and rules the families that have its rules. Tests replace both.
	find  func(context.Context) sign
	rules func() ([]lb.Family, error)
	// checked is closed after the first check.
	checked chan struct{}
	// last is the sign of the last check.
	last atomic.Int32
	// served reports whether kube-proxy has served.
	served atomic.Bool
	// gone are the families whose rules are gone; nil for none.
	gone atomic.Pointer[[]lb.Family]
}

// New returns a Boot that has not checked yet.
func New(c Config) *Boot {
	b := &Boot{config: c, checked: make(chan struct{}), rules: familiesWithRules}
	b.find = func(ctx context.Context) sign { return findSign(ctx, c.Livez) }
	if c.Livez == "" {
		b.served.Store(true)
		close(b.checked)
	}

	return b
}

// Served reports whether kube-proxy has served since the node started, according to the signs.
func (b *Boot) Served() bool { return b.served.Load() }

// RulesGone returns the families whose rules were in the kernel and are gone.
func (b *Boot) RulesGone() []lb.Family {
	gone := b.gone.Load()
	if gone == nil {
		return nil
	}
	return *gone
}

// Looked returns a channel that is closed after the first check. Before that, Served has no meaning.
func (b *Boot) Looked() <-chan struct{} { return b.checked }

// Waiting returns a clause about the last sign of kube-proxy, for logs and conditions.
func (b *Boot) Waiting() string {
	if b.config.Livez == "" {
		return "it is not waited for"
	}

	gone := b.RulesGone()
	if len(gone) > 0 {
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

// await checks until kube-proxy has served or ctx ends. Then it records the rules that exist.
func (b *Boot) await(ctx context.Context, rules *seenRules) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	start := time.Now()
	var steady steadySign
	for isFirst := true; ; isFirst = false {
		found := b.find(ctx)
		if ctx.Err() != nil {
			return
		}

		before := sign(b.last.Swap(int32(found)))
		suffices := steady.observe(time.Now(), found)
		if suffices {
			b.observe(rules) // before Served is true: from then on, missing rules count
			b.pass(found, time.Since(start))
		} else if isFirst || found != before {
			b.config.Log.Info("waiting for kube-proxy; this node announces nothing until kube-proxy has served",
				"found", b.Waiting())
		}

		if isFirst {
			close(b.checked)
		}
		if suffices {
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

// watch checks until ctx ends whether the rules that were seen still exist.
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

// observe reads the rules, and records the families whose rules are gone.
func (b *Boot) observe(seen *seenRules) {
	have, err := b.rules()
	if err != nil {
		return // the next check may succeed
	}
	b.setGone(seen.observe(time.Now(), have, families()))
}

// setGone records the families whose rules are gone. It deletes the record that kube-proxy has served, because the next
// speaker must not rely on rules that are gone.
func (b *Boot) setGone(gone []lb.Family) {
	before := b.RulesGone()
	if slices.Equal(before, gone) {
		return
	}

	b.gone.Store(&gone)
	b.config.Kick()

	record := Forget
	if len(gone) > 0 {
		b.config.Log.Error("the rules of kube-proxy are gone; this node leaves its addresses to nodes that have them",
			"families", gone)
	} else {
		b.config.Log.Info("the rules of kube-proxy are back", "families", before)
		record = marker().CreateEmpty
	}

	if err := record(); err != nil {
		b.config.Log.Warn("the record that kube-proxy has served is wrong for the next speaker on this node",
			"error", err)
	}
}

// pass ends the wait by a sign, and records for the next speaker that kube-proxy has served.
func (b *Boot) pass(found sign, after time.Duration) {
	b.served.Store(true)
	b.config.Log.Info("kube-proxy has served", "found", b.Waiting(), "after", after.Round(time.Millisecond))
	if found == servedBefore {
		return
	}

	if err := marker().CreateEmpty(); err != nil {
		b.config.Log.Warn("the next speaker on this node will wait for kube-proxy again", "error", err)
	}
}

// Tables and chains of kube-proxy. In mode nftables it makes its table and the rules in one transaction. In modes
// iptables and IPVS (visible if iptables uses nf_tables) it makes its first chains and the jump to them before their
// rules, and iptablesChain together with the rules. A firewall tool that flushes rules may leave the chains.
const (
	nftablesTable, nftablesHook, nftablesServices = "kube-proxy", "nat-prerouting", "services"
	iptablesTable, iptablesHook, iptablesServices = "nat", "PREROUTING", "KUBE-SERVICES"
	iptablesChain                                 = "KUBE-MARK-MASQ"
)

// markerTable is an empty table that records that kube-proxy has served. It survives restarts of the speaker, but not
// of the node.
const markerTable = "holdfast-booted"

// marker returns the table that is the record.
func marker() nft.Table { return nft.Table{Family: unix.NFPROTO_INET, Name: markerTable} }

// findSign returns the strongest sign of kube-proxy. Its health endpoint is at livez.
func findSign(ctx context.Context, livez string) sign {
	inKernel := kernelSign()
	if inKernel >= oneFamily {
		return inKernel
	}
	return askLivez(ctx, livez)
}

// kernelSign returns the strongest sign in the kernel; silent if there is none. A table that cannot be read counts as
// missing.
func kernelSign() sign {
	if marker().Exists() {
		return servedBefore
	}

	switch found, _ := familiesWithRules(); len(found) {
	case 0:
		return silent
	case len(families()):
		return allFamilies
	}

	return oneFamily
}

// familiesWithRules returns the families for which the kernel has kube-proxy's rules and the jump to them.
func familiesWithRules() (found []lb.Family, err error) {
	for _, f := range families() {
		has, readErr := hasRules(f)
		if has {
			found = append(found, f)
		}
		err = errors.Join(err, readErr)
	}

	return found, err
}

// hasRules reports whether the kernel has kube-proxy's rules for a family, and the jump to them.
func hasRules(f lb.Family) (bool, error) {
	number := byte(unix.NFPROTO_IPV4)
	if f == lb.IPv6 {
		number = unix.NFPROTO_IPV6
	}

	own := nft.Table{Family: number, Name: nftablesTable}
	if _, err := own.Handle(); err == nil {
		// A table with an unknown layout counts: another version may have made it.
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

// families returns the families for which kube-proxy makes rules: all that the kernel has enabled, even if the cluster
// uses only one.
func families() []lb.Family {
	out := []lb.Family{lb.IPv4}
	_, err := os.Stat("/proc/net/if_inet6")
	disabled, _ := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	if err == nil && strings.TrimSpace(string(disabled)) != "1" {
		out = append(out, lb.IPv6)
	}

	return out
}

// Forget deletes the record that kube-proxy has served, so that an uninstalled speaker leaves nothing behind.
func Forget() error { return marker().Delete() }

// sign is an observation of kube-proxy. A greater value is a stronger sign.
type sign int32

const (
	// silent means that no program listens on the address of kube-proxy.
	silent sign = iota
	// unready means that a server listens but does not report that it is healthy.
	unready
	// live means that the server reports that it is healthy. kube-proxy does so from its start, before it has made
	// rules.
	live
	// oneFamily means that rules exist for one of the node's families.
	oneFamily
	// allFamilies means that rules exist for all families of the node.
	allFamilies
	// servedBefore means that an earlier speaker has recorded that kube-proxy has served since the node started.
	servedBefore
)

// never is longer than any sign lasts.
const never = time.Duration(math.MaxInt64)

// signs has for each sign the time for which it must last until kube-proxy counts as serving, and a clause for logs and
// conditions.
var signs = [...]struct {
	lasts time.Duration
	text  string
}{
	// On a node without kube-proxy, an unknown program without this health endpoint serves.
	silent:  {30 * time.Second, "nothing listens on ADDRESS"},
	unready: {never, "the server on ADDRESS does not report that it is healthy"},
	// The rules may be invisible (iptables without nf_tables, or another proxy). Allow the time to read all Services.
	live: {10 * time.Second, "it answers on ADDRESS, but its rules are not visible"},
	// kube-proxy handles families independently, and may never make the rules of one of them.
	oneFamily:    {2 * time.Second, "its rules exist for one IP family"},
	allFamilies:  {0, "its rules are in the kernel"},
	servedBefore: {0, "it has served since the node started"},
}

// describe returns the clause of a sign, with the address of kube-proxy's health endpoint.
func (s sign) describe(address string) string {
	return strings.Replace(signs[s].text, "ADDRESS", address, 1)
}

// steadySign is the last sign, and the time since when it is the same. It is pure: the time is an argument.
type steadySign struct {
	sign  sign
	since time.Time
}

// observe records a sign, and reports whether it has lasted long enough.
func (l *steadySign) observe(at time.Time, found sign) bool {
	if l.since.IsZero() || found != l.sign {
		*l = steadySign{found, at}
	}
	return at.Sub(l.since) >= signs[found].lasts
}

// seenRules holds the families whose rules were seen. It is pure: the time is an argument.
type seenRules struct {
	families []lb.Family
	// missing is the time since when rules of one of them have been missing; the zero Time if all exist.
	missing time.Time
}

// observe records which of the node's families have rules. It returns the families whose rules were seen and have been
// missing for lossTime. A family that the node no longer has does not count.
func (s *seenRules) observe(at time.Time, have, all []lb.Family) (gone []lb.Family) {
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
		s.missing = at
	}

	if at.Sub(s.missing) < lossTime {
		return nil
	}

	return gone
}

// requestTimeout is the timeout of an HTTP request to kube-proxy's health endpoint.
const requestTimeout = time.Second

// newClient returns a client that connects to kube-proxy directly: it follows no redirect, and ignores the proxy
// settings of the environment.
func newClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout:       timeout,
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// get requests a page of kube-proxy. It reports whether a server listens there, even on an error.
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

// askLivez requests the health of kube-proxy at a host and port, and returns it as a sign. A server without the path is
// not kube-proxy.
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
