package filter

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// profile holds what the rules for a frontend depend on; the lists of sources are in the sets.
// Frontends of one profile share its chain. The chain looks up masked sources, once for
// each prefix length in the frontend's own lists, so that the lists of others do not
// add lookups.
type profile struct {
	ipv6 bool
	// restricted: sources outside the allow set are refused.
	restricted bool
	// allow and deny are the lengths of the prefixes in the frontend's lists, an octet each, the longest first.
	allow, deny string
	// inside: what this node and its pods send comes in past lists and limits.
	inside      bool
	refuse      bool
	limit, rate int
	// odd is the parity of a frontend's lists: it changes when they do, and says in which sets they are. So a packet
	// that sees an old verdict and new sets during a commit does not match a mixture of both lists.
	odd bool
}

// rules returns how many rules look up sources.
func (p profile) rules() int { return len(p.allow) + len(p.deny) }

// samples returns the sets and chains of a profile of each family that has every kind of rule, with a limit of
// connections or without.
func samples(limit int) (sets []nft.Set, chains []nft.Chain) {
	p := profile{restricted: true, allow: "\x01", deny: "\x01", inside: true, limit: limit, rate: 1}
	for _, p.ipv6 = range []bool{false, true} {
		for _, name := range p.chainNames() {
			sets, chains = append(sets, p.setsOf(name)...), append(chains, p.chain(name))
		}
	}

	return sets, chains
}

// even returns the profile that stands for both parities.
func (p profile) even() profile {
	p.odd = false
	return p
}

func profileOf(d *frontend) profile {
	p := profile{ipv6: d.Address.Is6(), restricted: d.Restricted, inside: d.Inside, refuse: d.Refuse}
	if d.refused != nil {
		return profile{ipv6: p.ipv6, restricted: true}
	}

	if !d.Refuse {
		p.limit, p.rate = max(d.ConnectionLimit, 0), max(d.RateLimit, 0)
	}

	if d.allow != nil {
		p.allow = d.allow.lengths
	}

	if d.deny != nil {
		p.deny = d.deny.lengths
	}

	return p
}

func (p profile) family() *family { return familyOf(p.ipv6) }

// firstChain is the first chain of the profile; nft.Accepted if it needs none.
func (p profile) firstChain() string {
	if name := p.rangesChain(); name != nft.Accepted {
		return name
	}
	return p.afterRanges()
}

// afterRanges is the chain for sources that the ranges admit.
func (p profile) afterRanges() string {
	switch f := p.family(); {
	case p.refuse:
		return f.named(refuseChain)
	case p.limited():
		return f.named(fmt.Sprintf("limits-connections-%d-rate-%d-v", p.limit, p.rate))
	}

	return nft.Accepted
}

// rangesChain names the chain that checks the source; nft.Accepted without ranges. The same profile has the
// same name in every process.
func (p profile) rangesChain() string {
	if !p.restricted && p.deny == "" {
		return nft.Accepted
	}

	hash := sha256.Sum256(fmt.Appendf(nil, "%#v", p.even()))
	name := fmt.Sprintf("ranges-%x", hash[:12])
	if p.odd {
		name += oddSuffix
	}

	return p.family().named(name + "-v")
}

// oddSuffix ends the name of an odd profile's chain, before the suffix of the family.
const oddSuffix = "-odd"

// listsIn returns the name of allowSet or denySet for the parity of the profile.
func (p profile) listsIn(base string) string {
	if p.odd {
		base += oddSuffix
	}
	return p.family().named(base)
}

// chainNames returns the chains of the profile, each after its jump targets: limits before ranges.
func (p profile) chainNames() []string {
	var list []string
	if p.limited() {
		list = append(list, p.afterRanges())
	}

	if name := p.rangesChain(); name != nft.Accepted {
		list = append(list, name)
	}

	return list
}

func (p profile) limited() bool { return p.limit > 0 || p.rate > 0 }

// chain makes one of the profile's chains.
func (p profile) chain(name string) nft.Chain {
	if name == p.rangesChain() {
		return nft.Chain{Name: name, Rules: p.rangeRules()}
	}
	return nft.Chain{Name: name, Rules: p.limitRules()}
}

// wide is a register behind the key of a frontend.
const wide = reg + 8

// wholeKey fills the registers of a key of sourcesSet with the source and what follows it, to be overwritten. So the
// nft command takes the key for a part of the packet: where a part of a key is a map's value, it ends with a failed
// assertion, and with it every listing.
func (f *family) wholeKey() *expr.Payload {
	load := f.Load(f.Source, wide)
	load.Len += 2 * numberSize
	return load
}

func (p profile) rangeRules() []nft.Rule {
	f := p.family()
	key := f.LoadFrontend()
	source, length, number := uint32(wide), wide+f.Words(), wide+f.Words()+1
	numberIn := func(lists string) nft.Rule {
		return slices.Concat(
			key,
			nft.Expr(
				&expr.Lookup{SourceRegister: reg, SetName: p.listsIn(lists), IsDestRegSet: true, DestRegister: number},
			),
		)
	}

	sourceIn := func(lists string, bits byte) nft.Rule {
		return slices.Concat(
			f.masked(f.wholeKey(), source, int(bits)),
			nft.Expr(&expr.Immediate{Register: length, Data: nft.Native(uint32(bits))}),
			numberIn(lists),
			nft.Expr(&expr.Lookup{SourceRegister: source, SetName: f.named(sourcesSet)}),
		)
	}

	refused := goTo(f.named(dropChain + sourceRange.String()))
	var rules []nft.Rule
	if p.inside {
		rules = append(rules, slices.Concat(fromInside(), accept()))
	}

	for _, bits := range []byte(p.deny) {
		rules = append(rules, slices.Concat(sourceIn(denySet, bits), refused))
	}

	for _, bits := range []byte(p.allow) {
		rules = append(rules, slices.Concat(sourceIn(allowSet, bits), acceptOrGoTo(p.afterRanges())))
	}

	// During a commit a list may be gone already, and matches no source then. No packet may come in without it.
	if !p.restricted {
		rules = append(rules, slices.Concat(numberIn(denySet), acceptOrGoTo(p.afterRanges())))
	}

	return append(rules, refused)
}

// limitRules limit new connections. The rate comes first, so that the packets it refuses do not count as connections.
func (p profile) limitRules() []nft.Rule {
	f := p.family()
	key := f.LoadFrontend()
	rules := []nft.Rule{slices.Concat(opensConnection(), withoutSYN(), f.destinationIn(relayedSet), accept())}
	if p.rate > 0 {
		rules = append(rules, slices.Concat(opensConnection(), key, f.sourceMasked(f.AfterPort(), f.host),
			overLimit(p.rateSet(), perSecond(p.rate, true), true), goTo(f.named(dropChain+rateLimit.String()))))
	}

	if p.limit > 0 {
		rules = append(rules, slices.Concat(opensConnection(), key,
			overLimit(p.limitSet(), &expr.Connlimit{Count: uint32(p.limit), Flags: expr.NFT_CONNLIMIT_F_INV}, false),
			goTo(f.named(dropChain+connectionLimit.String()))))
	}

	return append(rules, accept())
}

// limitSet counts connections by frontend, rateSet remembers sources by frontend. Each chain of limits has its own:
// the bound of an element is that of the rule which made it.
func (p profile) limitSet() string { return "connections-" + p.afterRanges() }
func (p profile) rateSet() string  { return "rate-" + p.afterRanges() }

// setsOf returns the sets that belong to one of the profile's chains alone.
func (p profile) setsOf(name string) []nft.Set {
	f := p.family()
	var list []nft.Set
	if name == p.rangesChain() {
		return nil
	}

	if p.limit > 0 {
		list = append(
			list,
			nft.Set{Name: p.limitSet(), Key: f.PortType(), Flags: unix.NFT_SET_EVAL, Size: sourceMemory},
		)
	}

	if p.rate > 0 {
		list = append(list, nft.Set{
			Name: p.rateSet(), Key: append(f.PortType(), f.Address), Flags: unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT,
			Size: sourceMemory, Timeout: memoryTimeout,
		})
	}

	return list
}
