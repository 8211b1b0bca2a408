package liveness

import (
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestGoodbyes: a node whose speaker was stopping forwards for a while after it is
// gone; one whose speaker is there, or was not stopping, is no case of that.
func TestGoodbyes(t *testing.T) {
	g, now := goodbyes{}, time.Unix(1000, 0)
	stopping, fresh := lb.Member{Stopping: true}, lb.Member{}
	for _, tt := range []struct {
		when  string
		after time.Duration
		a     lb.Member
		alive string
		said  string
		left  bool
		again time.Duration
	}{
		{"a is stopping", 0, stopping, "a b", "", false, 0},
		{"a has left, b is dead", time.Second, stopping, "", "", true, leftTime},
		{"shortly before time is up", leftTime - time.Second, stopping, "", "", true, time.Second},
		{"time is up", time.Second, stopping, "", "", false, 0},
		{"a is back", time.Second, fresh, "a", "", false, 0},
		{"a has left again", time.Second, stopping, "", "", true, leftTime},
		{"a is back again", time.Second, fresh, "a", "", false, 0},
		{"a has left, and its last metadata was lost", time.Second, fresh, "", "a", true, leftTime},
		{"time is up again", leftTime, fresh, "", "a", false, 0},
	} {
		now = now.Add(tt.after)
		left, again := g.left(now, map[string]lb.Member{"a": tt.a, "b": {}}, nodes(tt.alive), nodes(tt.said))
		if left["a"] != tt.left || left["b"] || again != tt.again {
			t.Errorf("%s: left are %v, again after %v; want a: %t, %v", tt.when, left, again, tt.left, tt.again)
		}
	}
}
