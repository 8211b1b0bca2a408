package nodelifecycle

import (
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDoubts: most speakers miss the leader's node, whose clock runs an hour ahead.
func TestDoubts(t *testing.T) {
	start := time.Now()
	written := map[string]*v1beta1.SpeakerState{}
	write := func(speaker string, seconds float64, missing ...string) {
		now := start.Add(time.Duration(seconds * float64(time.Second)))
		if speaker == "leader" {
			now = now.Add(time.Hour)
		}
		o := &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: speaker}}
		o.Status.Observed = new(v1beta1.NewMicroTime(now))
		for _, node := range missing {
			o.Status.Unreachable = append(o.Status.Unreachable, v1beta1.SilentNode{Node: node, Since: v1beta1.NewMicroTime(now.Add(-150 * time.Millisecond))})
		}
		written[speaker] = o
	}
	var d Doubts
	missed := func(seconds float64) bool {
		var states []*v1beta1.SpeakerState
		for _, o := range written {
			states = append(states, o)
		}
		return d.Missed(start.Add(time.Duration(seconds*float64(time.Second))), states, 4, "leader")
	}
	step := func(seconds float64, want bool, what string) {
		t.Helper()
		if got := missed(seconds); got != want {
			t.Errorf("second %v, %s: %t", seconds, what, got)
		}
	}
	for _, speaker := range []string{"leader", "a", "b", "c"} {
		write(speaker, 0)
	}
	step(0.1, false, "all hear each other")
	write("a", 10, "leader")
	write("b", 10, "leader")
	step(10.1, false, "two of four miss it")
	write("c", 10.2, "leader", "a")
	step(10.3, true, "three of four miss it")
	write("leader", 11)
	step(11.1, false, "its own speaker has written since")
	for _, speaker := range []string{"a", "b", "c"} {
		write(speaker, 12)
	}
	step(12.1, false, "they hear it again")
	write("a", 20, "leader")
	write("b", 20, "leader")
	write("c", 20, "leader")
	step(20.1, true, "it is missed again")
	step(81, false, "that was long ago")
}
