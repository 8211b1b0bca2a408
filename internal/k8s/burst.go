package k8s

import "golang.org/x/time/rate"

const (
	// burstRate is how many Services a second, and burstSize how many at once, may get
	// or lose addresses before that counts as a burst.
	burstRate = 10
	burstSize = 10
)

// newBurst returns the bucket from which each Service takes a token as its addresses change. It has twice the threshold, so
// that a burst ends a second after its last Service.
func newBurst() *rate.Limiter { return rate.NewLimiter(burstRate, burstSize+burstRate) }

// InBurst reports whether many Services are getting addresses just now. Users wait for each of these writes, so that less
// urgent ones are delayed.
func (k *Cluster) InBurst() bool { return k.burst.Tokens() < burstRate }
