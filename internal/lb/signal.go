package lb

// Signal wakes a goroutine that then reads everything again, so that one pending signal is enough.
type Signal chan struct{}

// NewSignal returns a Signal that is not pending.
func NewSignal() Signal { return make(Signal, 1) }

// Kick makes the signal pending. It never blocks.
func (s Signal) Kick() {
	select {
	case s <- struct{}{}:
	default:
	}
}
