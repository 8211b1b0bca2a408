package kubeproxy

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

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

// lossTime is the time for which rules must be missing to count as gone: a kube-proxy that starts in another mode
// removes the rules of the former mode before it makes its own.
const lossTime = 2 * time.Second

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
