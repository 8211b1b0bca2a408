// Package podnetwork finds out whether this node has reached pods of other nodes since it started.
//
// A network plugin runs in a pod, as Holdfast does. Its configuration on disk and the conditions of the Node are from
// before the boot, and say that it is ready. kube-proxy serves earlier, and sends connections to endpoints on other
// nodes, which do not get there yet. Routes are no sign: some plugins make them before their eBPF programs, others
// never.
//
//	b := podnetwork.New(podnetwork.Config{Log: log, Remote: remote, Kick: loop.Kick})
//	go b.Run(ctx)
//	<-b.Looked()
//	if b.Missing() { … } // others should announce what they can
//
// In goes what the cluster knows of pods, out comes a yes or no. The package opens connections to pods and sends
// nothing on them. It changes nothing but a record of its own.
package podnetwork

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

const (
	// interval is the time between two looks, and how long a pod has to answer.
	interval = 250 * time.Millisecond
	// patience is how long the plugin of a node that reaches no pod counts as not started. Policies may keep nodes from
	// all pods.
	patience = 3 * time.Minute
)

// Config is what a Boot needs.
type Config struct {
	Log *slog.Logger
	// Remote returns TCP ports of pods on other nodes, some of each family.
	Remote func() []netip.AddrPort
	// Settle is how long the network plugin has after the first answer; 0 where kube-proxy's rules show more.
	Settle time.Duration
	// Kick is called when Missing changes.
	Kick func()
}

// Boot is the time between the start of a node and the first answer of a pod on another node.
type Boot struct {
	config Config
	// answers asks a pod. Tests replace it.
	answers func(context.Context, netip.AddrPort) bool
	// looked is closed after the first look.
	looked  chan struct{}
	missing atomic.Bool
}

// New returns a Boot that has not looked yet.
func New(c Config) *Boot {
	return &Boot{config: c, answers: answers, looked: make(chan struct{})}
}

// Missing reports whether no pod of another node answers, in one of the families that these have, and none has since
// this node started. It reports that for three minutes at most.
func (b *Boot) Missing() bool { return b.missing.Load() }

// Looked returns a channel that is closed after the first look; before that, Missing has no meaning.
func (b *Boot) Looked() <-chan struct{} { return b.looked }

// Run looks until pods answer, or it has waited long enough, or ctx ends. A later speaker on this node does not wait
// again.
func (b *Boot) Run(ctx context.Context) error {
	if record().Exists() {
		close(b.looked)
		return nil
	}
	if !b.await(ctx) {
		return nil
	}
	if err := record().CreateEmpty(); err != nil {
		b.config.Log.Warn("the next speaker on this node will wait for pods of other nodes again", "error", err)
	}
	return nil
}

// await looks until pods answer, or it has waited long enough. It returns false if ctx ends before.
func (b *Boot) await(ctx context.Context) bool {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	end := time.NewTimer(patience)
	defer end.Stop()

	for first := true; ; first = false {
		pods := b.config.Remote()
		family, missing := b.unreached(ctx, pods)
		if b.missing.Load() && !missing {
			b.settle(ctx)
		}
		if ctx.Err() != nil {
			return false
		}
		changed := b.missing.Swap(missing) != missing
		if first {
			close(b.looked)
		}
		if changed {
			b.config.Log.Info("pods of other nodes", "missing", missing, "family", family, "asked", lb.SomeOf(pods))
			b.config.Kick()
		}
		if !missing && len(pods) > 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-end.C:
			b.giveUp()
			return true
		case <-tick.C:
		}
	}
}

// settle gives the plugin time: a program that replaces kube-proxy may reach pods of other nodes before it serves what
// comes from outside, and nothing shows when it does.
func (b *Boot) settle(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(b.config.Settle):
	}
}

// giveUp ends the wait of a node that reaches no pod: it may not be allowed to.
func (b *Boot) giveUp() {
	if b.missing.Swap(false) {
		b.config.Log.Warn("no pod of another node answers, and this node no longer waits for one", "after", patience)
		b.config.Kick()
	}
}

// unreached asks pods at once, and returns a family of which none answers.
func (b *Boot) unreached(ctx context.Context, pods []netip.AddrPort) (family lb.Family, missing bool) {
	reached := map[lb.Family]*atomic.Bool{}
	var group sync.WaitGroup
	for _, pod := range pods {
		f := lb.FamilyOf(pod.Addr())
		if reached[f] == nil {
			reached[f] = &atomic.Bool{}
		}
		found := reached[f]
		group.Go(func() {
			if b.answers(ctx, pod) {
				found.Store(true)
			}
		})
	}
	group.Wait()
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		if reached[f] != nil && !reached[f].Load() {
			return f, true
		}
	}
	return "", false
}

// answers reports whether a pod accepts or refuses a connection.
func answers(ctx context.Context, pod netip.AddrPort) bool {
	dialer := net.Dialer{Timeout: interval}
	conn, err := dialer.DialContext(ctx, "tcp", pod.String())
	if err != nil {
		return errors.Is(err, unix.ECONNREFUSED)
	}
	_ = conn.Close()
	return true
}

// recordTable is an empty table which records that pods answered. It survives restarts of the speaker, but not of the
// node.
const recordTable = "holdfast-pods-reached"

func record() nft.Table { return nft.Table{Family: unix.NFPROTO_INET, Name: recordTable} }

// Forget deletes the record that pods answered, so that an uninstalled speaker leaves nothing behind.
func Forget() error { return record().Delete() }
