package liveness

import (
	"maps"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// leftTime is how long a node whose speaker said goodbye counts as one that forwards:
// longer than a new speaker takes to come, with the pull of its image. No heartbeats come from
// there meanwhile, so nobody would notice if the node died too.
const leftTime = 2 * time.Minute

// goodbyes are the nodes whose speakers said goodbye, or were stopping when they were heard last, and since when they
// are gone.
type goodbyes map[string]time.Time

// left returns the nodes that forward though their speakers are gone, and how long until one of them does not count
// any more; 0 for never.
func (g goodbyes) left(
	now time.Time,
	members map[string]lb.Member,
	alive, said map[string]bool,
) (left map[string]bool, again time.Duration) {
	gone := func(name string) bool { return !alive[name] && (said[name] || members[name].Stopping) }
	maps.DeleteFunc(g, func(name string, _ time.Time) bool { return !gone(name) })
	left = map[string]bool{}
	for name := range members {
		if !gone(name) {
			continue
		}
		if _, known := g[name]; !known {
			g[name] = now
		}
		if rest := leftTime - now.Sub(g[name]); rest > 0 {
			left[name] = true
			if again == 0 || rest < again {
				again = rest
			}
		}
	}
	return left, again
}
