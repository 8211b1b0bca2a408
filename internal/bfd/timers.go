package bfd

import "time"

// slowInterval is the least interval of packets while a session is not up (RFC 5880 section 6.8.3).
const slowInterval = time.Second

// timers are the intervals of both sides (RFC 5880 section 6.8.1), and what Poll Sequences are for: a change that makes
// packets rarer, or expects more of them, counts only after the neighbor has confirmed it.
type timers struct {
	// desiredTransmit and requiredReceive are told the neighbor; those in use may still be the ones before.
	desiredTransmit, transmitInUse time.Duration
	requiredReceive, receiveInUse  time.Duration
	// What the neighbor told last.
	remoteTransmit, remoteReceive time.Duration
	remoteMultiplier              uint8
	// polling: the neighbor has not confirmed the intervals; pollAgain: they changed since the poll began.
	polling, pollAgain bool
}

// apply takes over intervals. Those of a session that is not up count at once: nothing depends on them.
func (t *timers) apply(transmit, receive time.Duration, up bool) {
	if transmit == t.desiredTransmit && receive == t.requiredReceive {
		return
	}
	t.desiredTransmit, t.requiredReceive = transmit, receive
	if !up {
		t.settle()
		t.polling, t.pollAgain = false, false
		return
	}
	t.pollAgain = t.polling
	t.polling = true
	// RFC 5880 section 6.8.3: an increased transmission interval and a reduced receive interval wait for the Final.
	t.transmitInUse = min(t.transmitInUse, transmit)
	t.receiveInUse = max(t.receiveInUse, receive)
}

func (t *timers) settle() { t.transmitInUse, t.receiveInUse = t.desiredTransmit, t.requiredReceive }

// confirmed is called for a packet with the Final bit. The Final of an earlier poll confirms nothing of a later one.
func (t *timers) confirmed() {
	switch {
	case !t.polling:
	case t.pollAgain:
		t.pollAgain = false
	default:
		t.polling = false
		t.settle()
	}
}

// interval is that of our packets: what both sides accept (RFC 5880 section 6.8.2).
func (t *timers) interval() time.Duration { return max(t.transmitInUse, t.remoteReceive) }

// detection is the silence of the neighbor after which it is gone (RFC 5880 section 6.8.4): its multiplier counts, since
// it is the one that knows how often it sends.
func (t *timers) detection() time.Duration {
	return time.Duration(t.remoteMultiplier) * max(t.receiveInUse, t.remoteTransmit)
}

// jittered is an interval less 0 to 25 %, and 10 to 25 % if one lost packet is a failure (RFC 5880 section 6.8.7).
func jittered(interval time.Duration, multiplier uint8, random uint64) time.Duration {
	const steps = 1 << 16
	least, span := time.Duration(0), interval/4
	if multiplier == 1 {
		least, span = interval/10+1, interval/4-interval/10-1
	}
	return interval - least - span*time.Duration(random%steps)/steps
}
