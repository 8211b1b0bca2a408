package kubeproxy

import "time"

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

// leastTime is how long a sign must last before the node counts as served. Other signs never suffice.
var leastTime = map[sign]time.Duration{
	// On nodes without kube-proxy an unknown program serves, which has no health endpoint here.
	silent: 30 * time.Second,
	// If its rules are invisible (iptables without nf_tables, another proxy in its place), allow the time to read all
	// Services.
	live: 10 * time.Second,
	// kube-proxy treats its families independently, and may never make the rules of one.
	oneFamily:    2 * time.Second,
	allFamilies:  0,
	servedBefore: 0,
}

// describe returns a clause for logs and conditions; address is that of kube-proxy's health endpoint.
func (s sign) describe(address string) string {
	switch s {
	case silent:
		return "nothing listens on " + address
	case unready:
		return "the server on " + address + " does not report that it is healthy"
	case live:
		return "it answers on " + address + ", but its rules are not visible"
	case oneFamily:
		return "its rules exist for one IP family"
	case allFamilies:
		return "its rules are in the kernel"
	}
	return "it has served since the node started"
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
	least, does := leastTime[is]
	return does && now.Sub(l.since) >= least
}
