package liveness

import (
	"maps"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// leftTime is how long a node whose speaker said goodbye counts as one that forwards:
// longer than a new speaker takes to come, image and all. Nobody sends heartbeats from
// there meanwhile, so that it would not be noticed if the node went too.
const leftTime = 2 * time.Minute

// goodbyes are the nodes whose speakers were stopping when they were heard last, and since when they are not.
type goodbyes map[string]time.Time

// left returns the nodes that forward though their speakers are gone, and how long until one does no more; 0 for never.
func (g goodbyes) left(now time.Time, told map[string]lb.Member, alive map[string]bool) (left map[string]bool, again time.Duration) {
	maps.DeleteFunc(g, func(name string, _ time.Time) bool { return alive[name] || !told[name].Stopping })
	left = map[string]bool{}
	for name, m := range told {
		if alive[name] || !m.Stopping {
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
