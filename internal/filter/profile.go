package filter

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// profile holds the properties of a frontend on which its rules depend. The lists of sources are in sets. Frontends of
// one profile share its chains.
//
// The chain looks up masked sources, once for each prefix length in the frontend's own lists. So the lists of other
// frontends add no lookups.
//
// The names of the type and of its fields are part of the name of a chain (rangesChain): after another name for one of
// them, an upgrade replaces the table of the older process.
type profile struct {
	ipv6 bool
	// restricted refuses the sources outside the allow list.
	restricted bool
	// allow and deny are the lengths of the prefixes in the frontend's lists, an octet each, the longest first.
	allow, deny string
	// inside exempts packets of this node and its pods from lists and limits.
	inside bool
	// refuse rejects new connections, because no endpoint is on this node.
	refuse bool
	// limit is the number of connections of the frontend, and rate the number of new connections of a source per
	// second; 0 for no limit.
	limit, rate int
	// odd is the parity of a frontend's lists, which chooses their sets. It changes with the lists. So a packet that
	// meets an old verdict and new sets during a commit does not match a mixture of both lists.
	odd bool
}

// rules returns the number of rules that look up sources.
func (p profile) rules() int {
	return len(p.allow) + len(p.deny)
}

// samples returns the sets and chains of two profiles, one of each family. They have every kind of rule; the limit of
// connections may be 0 for none.
func samples(limit int) (sets []nft.Set, chains []nft.Chain) {
	p := profile{
		restricted: true,
		allow:      "\x01",
		deny:       "\x01",
		inside:     true,
		limit:      limit,
		rate:       1,
	}
	for _, p.ipv6 = range []bool{false, true} {
		for _, name := range p.chainNames() {
			sets = append(sets, p.setsOf(name)...)
			chains = append(chains, p.chain(name))
		}
	}

	return sets, chains
}

// even returns the profile of even parity.
func (p profile) even() profile {
	p.odd = false
	return p
}

// profileOf returns the profile of a frontend, of even parity. A closed frontend admits no source.
func profileOf(d *frontend) profile {
	if d.refused != nil {
		return profile{ipv6: d.Address.Is6(), restricted: true}
	}

	p := profile{
		ipv6:       d.Address.Is6(),
		restricted: d.Restricted,
		inside:     d.Inside,
		refuse:     d.Refuse,
	}
	if !d.Refuse {
		p.limit = max(d.ConnectionLimit, 0)
		p.rate = max(d.RateLimit, 0)
	}

	if d.allow != nil {
		p.allow = d.allow.lengths
	}

	if d.deny != nil {
		p.deny = d.deny.lengths
	}

	return p
}

// family returns the family of the profile's frontends.
func (p profile) family() *family {
	return familyOf(p.ipv6)
}

// firstChain returns the name of the profile's first chain; nft.Accepted if it needs none.
func (p profile) firstChain() string {
	name := p.rangesChain()
	if name != nft.Accepted {
		return name
	}
	return p.afterRanges()
}

// afterRanges returns the name of the chain for admitted sources; nft.Accepted if it needs none.
func (p profile) afterRanges() string {
	switch {
	case p.refuse:
		return p.family().named(refuseChain)
	case p.limited():
		return p.family().named(fmt.Sprintf("limits-connections-%d-rate-%d-v", p.limit, p.rate))
	}

	return nft.Accepted
}

// rangesChain returns the name of the chain that checks the source; nft.Accepted without ranges. The same profile has
// the same name in every process of this version.
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

// oddSuffix ends the names of chains and sets of odd parity, before the suffix of the family.
const oddSuffix = "-odd"

// listsIn returns the full name of allowSet or denySet for the parity of the profile.
func (p profile) listsIn(base string) string {
	if p.odd {
		base += oddSuffix
	}
	return p.family().named(base)
}

// chainNames returns the names of the profile's chains. Each follows its jump targets: limits come before ranges.
func (p profile) chainNames() []string {
	var list []string
	if p.limited() {
		list = append(list, p.afterRanges())
	}

	name := p.rangesChain()
	if name != nft.Accepted {
		list = append(list, name)
	}

	return list
}

// limited reports whether the profile limits connections or their rate.
func (p profile) limited() bool {
	return p.limit > 0 || p.rate > 0
}

// chain returns one of the profile's chains by its name.
func (p profile) chain(name string) nft.Chain {
	if name == p.rangesChain() {
		return nft.Chain{Name: name, Rules: p.rangeRules()}
	}
	return nft.Chain{Name: name, Rules: p.limitRules()}
}

// sourceReg is the register of a key of sourcesSet, behind the key of a frontend.
const sourceReg = reg + 8

// loadWholeKey loads the source and the bytes behind it into all registers of a key of sourcesSet. The rule overwrites
// the bytes behind the source. The nft command then takes the key for a part of the packet. Otherwise, if a part of a
// key is the value of a map, it aborts with a failed assertion, and no listing works.
func (f *family) loadWholeKey() *expr.Payload {
	load := f.Load(f.Source, sourceReg)
	load.Len += 2 * numberSize
	return load
}

// loadListNumber loads the number of a frontend's list into its register of a key of sourcesSet. It fails without a
// list.
func (p profile) loadListNumber(lists string) nft.Rule {
	f := p.family()
	number := &expr.Lookup{
		SourceRegister: reg,
		SetName:        p.listsIn(lists),
		IsDestRegSet:   true,
		DestRegister:   sourceReg + f.Words() + 1,
	}
	return slices.Concat(f.LoadFrontend(), nft.Expr(number))
}

// sourceIn matches if a frontend's list has the prefix of this length that contains the source.
func (p profile) sourceIn(lists string, bits byte) nft.Rule {
	f := p.family()
	length := &expr.Immediate{
		Register: sourceReg + f.Words(),
		Data:     nft.Native(uint32(bits)),
	}
	return slices.Concat(
		f.masked(f.loadWholeKey(), sourceReg, int(bits)),
		nft.Expr(length),
		p.loadListNumber(lists),
		nft.Expr(&expr.Lookup{SourceRegister: sourceReg, SetName: f.named(sourcesSet)}),
	)
}

// rangeRules returns the rules that check the source: the deny list first, the longest prefixes first.
func (p profile) rangeRules() []nft.Rule {
	refused := goTo(p.family().named(dropChain + sourceRange.String()))
	var rules []nft.Rule
	if p.inside {
		rules = append(rules, slices.Concat(fromInside(), accept()))
	}

	for _, bits := range []byte(p.deny) {
		rules = append(rules, slices.Concat(p.sourceIn(denySet, bits), refused))
	}

	for _, bits := range []byte(p.allow) {
		rules = append(rules, slices.Concat(
			p.sourceIn(allowSet, bits),
			acceptOrGoTo(p.afterRanges()),
		))
	}

	// During a commit a list may be deleted already. It then matches no source, and must not admit the packet.
	if !p.restricted {
		rules = append(rules, slices.Concat(p.loadListNumber(denySet), acceptOrGoTo(p.afterRanges())))
	}

	return append(rules, refused)
}

// limitRules returns the rules that limit new connections. The rate comes first: packets that it refuses must not count
// as connections.
func (p profile) limitRules() []nft.Rule {
	f := p.family()
	key := f.LoadFrontend()
	rules := []nft.Rule{slices.Concat(
		opensConnection(),
		withoutSYN(),
		f.destinationIn(relayedSet),
		accept(),
	)}
	if p.rate > 0 {
		rules = append(rules, slices.Concat(
			opensConnection(),
			key,
			f.sourceMasked(f.AfterPort(), f.host),
			overLimit(p.rateSet(), perSecond(p.rate, true), true),
			goTo(f.named(dropChain+rateLimit.String())),
		))
	}

	if p.limit > 0 {
		beyond := &expr.Connlimit{Count: uint32(p.limit), Flags: expr.NFT_CONNLIMIT_F_INV}
		rules = append(rules, slices.Concat(
			opensConnection(),
			key,
			overLimit(p.limitSet(), beyond, false),
			goTo(f.named(dropChain+connectionLimit.String())),
		))
	}

	return append(rules, accept())
}

// limitSet returns the name of the set that counts connections by frontend. Each chain of limits has sets of its own,
// because an element keeps the limit of the rule that made it.
func (p profile) limitSet() string {
	return "connections-" + p.afterRanges()
}

// rateSet returns the name of the set that counts new connections by frontend and source.
func (p profile) rateSet() string {
	return "rate-" + p.afterRanges()
}

// setsOf returns the sets that only one of the profile's chains uses.
func (p profile) setsOf(name string) []nft.Set {
	if name == p.rangesChain() {
		return nil
	}

	f := p.family()
	var list []nft.Set
	if p.limit > 0 {
		list = append(list, nft.Set{
			Name:  p.limitSet(),
			Key:   f.PortType(),
			Flags: unix.NFT_SET_EVAL,
			Size:  sourceMemory,
		})
	}

	if p.rate > 0 {
		list = append(list, nft.Set{
			Name:    p.rateSet(),
			Key:     append(f.PortType(), f.Address),
			Flags:   unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT,
			Size:    sourceMemory,
			Timeout: memoryTimeout,
		})
	}

	return list
}
