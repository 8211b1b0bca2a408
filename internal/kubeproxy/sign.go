package kubeproxy

import "time"

// sign is what there is to be seen of kube-proxy.
type sign int32

const (
	// nobody listens where it should.
	nobody sign = iota
	// unready: something listens, and does not say that it lives.
	unready
	// living: it says so, which it does from its first moment on, before it has made any rule.
	living
	// partly: its rules stand for one of the node's families.
	partly
	// standing: they stand for all.
	standing
	// before: it has served since the node was started, as an earlier speaker found out.
	before
)

// patience is for how long a sign must be seen for it to suffice. One that is not here never does.
var patience = map[sign]time.Duration{
	// Nodes without kube-proxy are served by something that cannot be asked.
	nobody: 30 * time.Second,
	// Where its rules cannot be seen (iptables without nf_tables, another proxy that answers in its place), they
	// come when it has read all Services.
	living: 10 * time.Second,
	// Its families do not wait for each other, and one may never come.
	partly:   2 * time.Second,
	standing: 0,
	before:   0,
}

// words are for a log or a condition; address is where it should answer.
func (s sign) words(address string) string {
	switch s {
	case nobody:
		return "nobody listens on " + address
	case unready:
		return "who listens on " + address + " does not say that it is well"
	case living:
		return "it answers on " + address + ", and its rules are not to be seen"
	case partly:
		return "its rules stand for one IP family"
	case standing:
		return "its rules stand"
	}
	return "it has served since the node was started"
}

// lasting is a sign and since when it is seen. It is pure: the time is an argument.
type lasting struct {
	sign  sign
	since time.Time
}

// suffices takes up what is seen now, and reports whether that has been so for long enough.
func (l *lasting) suffices(now time.Time, is sign) bool {
	if l.since.IsZero() || is != l.sign {
		*l = lasting{is, now}
	}
	least, does := patience[is]
	return does && now.Sub(l.since) >= least
}
