package main

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

// left returns the nodes that forward though their speakers are gone, and has kick called when that ends.
func (g *goodbyes) left(now time.Time, told map[string]lb.Member, alive map[string]bool, kick func()) map[string]bool {
	if *g == nil {
		*g = goodbyes{}
	}
	maps.DeleteFunc(*g, func(name string, _ time.Time) bool { return alive[name] || !told[name].Stopping })
	out := map[string]bool{}
	for name, m := range told {
		if alive[name] || !m.Stopping {
			continue
		}
		since, known := (*g)[name]
		if !known {
			since = now
			(*g)[name] = now
			time.AfterFunc(leftTime, kick)
		}
		if now.Sub(since) < leftTime {
			out[name] = true
		}
	}
	return out
}
