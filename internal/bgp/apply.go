package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/api"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// changes counts the changes made in GoBGP, by kind.
type changes map[string]int

// The kinds of changes. On a tick, without a new desired set, they are repairs.
const (
	kindRoute  = "bgp_route"
	kindPeer   = "bgp_peer"
	kindPolicy = "bgp_policy"
)

// apply brings GoBGP to the desired state. It adds before it deletes: rules
// before the paths that need them, and paths before the peers that receive them.
func (s *server) apply(d *Desired) (changes, error) {
	ctx := context.Background()
	done := changes{}
	peers, problem := usable(d.Peers)
	rules, err1 := s.statements(ctx)
	paths, err2 := s.paths()
	have, err3 := s.peers()
	if err := errors.Join(err1, err2, err3); err != nil {
		return done, errors.Join(problem, err)
	}
	want := newTable(d.Routes, peers, findNextHops(peers, have))

	s.notes.withhold(want.withheld)

	errs := []error{problem}
	both := maps.Clone(rules)
	maps.Copy(both, want.rules)
	if len(both) > len(rules) {
		done[kindPolicy]++
		errs = append(errs, s.setStatements(ctx, both))
	}
	for _, prefix := range slices.SortedFunc(maps.Keys(want.tags), netip.Prefix.Compare) {
		if !slices.Equal(paths[prefix], want.tags[prefix]) {
			done[kindRoute]++
			errs = append(errs, s.addPath(prefix, want.tags[prefix]))
		}
	}
	errs = append(errs, s.applyPeers(ctx, have, peers, done))
	for _, prefix := range slices.SortedFunc(maps.Keys(paths), netip.Prefix.Compare) {
		if len(want.tags[prefix]) == 0 {
			done[kindRoute]++
			errs = append(errs, s.deletePath(prefix))
		}
	}
	if len(both) > len(want.rules) {
		// Last: GoBGP uses the old rules to find out whether a peer received a path before.
		done[kindPolicy]++
		errs = append(errs, s.setStatements(ctx, want.rules))
	}
	return done, errors.Join(errs...)
}

// applyPeers adds missing peers, then recreates those that differ, then deletes the rest.
func (s *server) applyPeers(ctx context.Context, have []*api.Peer, want map[string]settings, done changes) error {
	byAddress := map[netip.Addr]settings{}
	for _, w := range want {
		byAddress[w.address] = w
	}
	var errs []error
	var rest []*api.Peer
	for _, p := range have {
		actual := readSettings(p)
		if byAddress[actual.address] != actual || spent(p) {
			rest = append(rest, p)
			continue
		}
		delete(byAddress, actual.address)
	}
	held := map[netip.Addr]bool{}
	for _, p := range rest {
		held[readSettings(p).address] = true
	}
	for _, w := range slices.SortedFunc(maps.Values(byAddress), compareSettings) {
		if !held[w.address] {
			done[kindPeer]++
			errs = append(errs, s.addPeer(ctx, w))
		}
	}
	for _, p := range rest {
		actual := readSettings(p)
		w, wanted := byAddress[actual.address]
		if !wanted || w != actual {
			done[kindPeer]++
		}
		if wanted {
			errs = append(errs, s.recreate(ctx, p, w))
			continue
		}
		errs = append(errs, s.deletePeer(ctx, p))
		s.notes.forget(actual.address)
	}
	return errors.Join(errs...)
}

// recreate deletes a peer and adds it again. Concurrent list calls wait, and then find it with all its past.
func (s *server) recreate(ctx context.Context, p *api.Peer, want settings) error {
	s.recreating.Lock()
	defer s.recreating.Unlock()
	err := s.deletePeer(ctx, p)
	s.notes.carry(want.address, p.State.Messages)
	if want != readSettings(p) {
		s.notes.clear(want.address) // it was about the old settings
	}
	return errors.Join(err, s.addPeer(ctx, want))
}

// usable returns the settings of the peers by name. GoBGP identifies peers by
// address, so of two peers with the same address only the first by name is usable.
func usable(peers []lb.Peer) (map[string]settings, error) {
	var errs []error
	out, taken := map[string]settings{}, map[netip.Addr]string{}
	for _, p := range slices.SortedFunc(slices.Values(peers), func(a, b lb.Peer) int { return strings.Compare(a.Name, b.Name) }) {
		s, err := settingsOf(p)
		if other, found := taken[p.Address]; found {
			err = fmt.Errorf("%s is the address of peer %s already", p.Address, other)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("use peer %s: %w", p.Name, err))
			continue
		}
		out[p.Name], taken[p.Address] = s, p.Name
	}
	return out, errors.Join(errs...)
}

func compareSettings(a, b settings) int { return strings.Compare(a.name, b.name) }
