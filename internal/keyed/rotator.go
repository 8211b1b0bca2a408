package keyed

import (
	"cmp"
	"maps"
	"time"
)

// Rotator decides what the leading controller writes to the Secret. A controller that becomes the leader again needs a
// new Rotator: another controller may have changed the Secret in between.
type Rotator struct {
	// NewKey returns a new random key of Length bytes.
	NewKey func() []byte

	stability

	// inUse and former are the entries of the last read, or of the step that was decided then. A write that failed may
	// have landed, and speakers may send with its key.
	inUse, former string
	// readAt is the time of the last read.
	readAt time.Time
}

// Decide returns the entries that the Secret should have, and the reason for the change; nil leaves it unchanged.
// speakersRun reports whether any speaker runs.
func (r *Rotator) Decide(s Secret, speakersRun bool, at time.Time) (want map[string][]byte, reason string) {
	unchanged := r.observe(s.Version, at)
	have := Read(s.Data)

	want = maps.Clone(s.Data)
	if want == nil {
		want = map[string][]byte{}
	}

	if r.isLost(have, at) {
		reason = "the key in use was removed, and is restored"
		r.restore(want)
	} else {
		r.inUse, r.former, r.readAt = have.InUse, have.Former, at
	}

	if _, ok := want[Key]; !ok {
		want[Key] = r.NewKey()
		reason = "there was no key, so the controller made one"
	}

	noKeyInUse := Read(want).InUse == ""
	switch {
	case noKeyInUse && !speakersRun: // no speaker can have another key, so there is nothing to wait for
		reason = cmp.Or(r.advance(want, settleTime), reason)
	case reason == "":
		reason = r.advance(want, unchanged)
	}

	if reason == "" {
		return nil, ""
	}
	return want, reason
}

// isLost reports whether the key in use was removed or changed since the last read. After a longer pause speakers may
// already use another key, and restoring the old one would do harm.
func (r *Rotator) isLost(have Keys, at time.Time) bool {
	return r.inUse != "" && have.InUse != r.inUse && at.Sub(r.readAt) < ReadInterval
}

// restore puts the last entries in-use and former back.
func (r *Rotator) restore(want map[string][]byte) {
	want[InUse] = []byte(r.inUse)
	if r.former != "" {
		want[Former] = []byte(r.former)
	}
}

// advance takes the next step towards the wanted key, if the Secret has been unchanged for settleTime. It returns the
// reason, or "" if there is no step to take.
func (r *Rotator) advance(want map[string][]byte, unchanged time.Duration) (reason string) {
	if unchanged < settleTime {
		return ""
	}

	have := Read(want)
	_, hasFormer := want[Former]

	switch {
	case hasFormer && have.InUse != "":
		delete(want, Former)
		reason = "every speaker sends with the key in use, so the former key is deleted"
	case have.Wanted != "" && have.Wanted != have.InUse:
		want[InUse] = want[Key]
		if have.InUse != "" {
			want[Former] = []byte(have.InUse)
		}
		reason = "every speaker accepts the new key, so it is put in use"
	}

	r.inUse, r.former = string(want[InUse]), string(want[Former])
	return reason
}
