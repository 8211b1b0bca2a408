package liveness

import (
	"maps"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// departedTime is how long a node whose speaker said goodbye counts as a node that forwards:
// longer than a new speaker takes to start, with the pull of its image. No heartbeats come from
// there meanwhile, so no watcher would notice if the node died too.
const departedTime = 2 * time.Minute

// goodbyes are the nodes whose speakers said goodbye, or were stopping when they were last heard, and since when they
// are gone.
type goodbyes map[string]time.Time

// departed returns the nodes that forward though their speakers are gone, and how long until one of them does not count
// any more; 0 for never. farewells are the nodes whose speakers said goodbye.
func (g goodbyes) departed(
	at time.Time,
	members map[string]lb.Member,
	alive, farewells map[string]bool,
) (departed map[string]bool, again time.Duration) {
	isGone := func(name string) bool { return !alive[name] && (farewells[name] || members[name].Stopping) }
	maps.DeleteFunc(g, func(name string, _ time.Time) bool { return !isGone(name) })

	departed = map[string]bool{}
	for name := range members {
		if !isGone(name) {
			continue
		}

		if _, isKnown := g[name]; !isKnown {
			g[name] = at
		}

		remaining := departedTime - at.Sub(g[name])
		if remaining <= 0 {
			continue
		}

		departed[name] = true
		if again == 0 || remaining < again {
			again = remaining
		}
	}

	return departed, again
}
