package keyed

import "maps"

// Rotator decides what the leading controller writes to the Secret. A controller that becomes the leader again needs a
// new Rotator: another controller may have changed the Secret in between.
type Rotator struct {
	// NewKey returns a new random key of Length bytes.
	NewKey func() []byte

	// inUse and former are these entries as they were last read. They are "" after a step until the next read: a step
	// without an answer may have landed.
	inUse, former string
}

// Decide returns the entries that the Secret should have, and the reason for the change; nil leaves it unchanged.
// allRead reports whether every speaker has read these data. It is called only if that decides about a step.
func (r *Rotator) Decide(data map[string][]byte, allRead func() bool) (want map[string][]byte, reason string) {
	have := Read(data)
	want = maps.Clone(data)
	if want == nil {
		want = map[string][]byte{}
	}

	switch {
	case have.InUse != "":
		r.inUse, r.former = have.InUse, have.Former
	case r.inUse != "":
		r.restore(want)
		reason = "the key in use was removed, and is restored"
	}
	if _, ok := want[Key]; !ok {
		want[Key] = r.NewKey()
		reason = "there was no key, so the controller made one"
	}
	if reason != "" {
		return want, reason
	}

	entry, key, reason := have.next()
	if entry == "" || !allRead() {
		return nil, ""
	}

	r.inUse, r.former = "", ""
	want[entry] = []byte(key)
	return want, reason
}

// restore puts the last entries in-use and former back.
func (r *Rotator) restore(want map[string][]byte) {
	want[InUse] = []byte(r.inUse)
	delete(want, Former)
	if r.former != "" {
		want[Former] = []byte(r.former)
	}
}

// next returns the entry that the next step changes, its new key, and the reason; "" if there is no step to take.
func (k Keys) next() (entry, key, reason string) {
	switch {
	case k.InUse == "" && k.Former == "" && k.Wanted != "":
		return Former, k.Wanted, "no key is in use, and every speaker accepts the wanted key, so all change to it"
	case k.InUse == "" && k.Former != "":
		return InUse, k.Former, "every speaker sends with the former key, so it is in use again"
	case k.InUse != "" && k.Former != k.InUse:
		return Former, k.InUse, "every speaker sends with the key in use, so other keys are dropped"
	case k.Wanted != "" && k.Wanted != k.InUse:
		return InUse, k.Wanted, "every speaker accepts the new key, so it is put in use"
	}
	return "", "", ""
}
