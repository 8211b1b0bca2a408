package kind

import "testing"

// The kernel takes 15 bytes of a link's name, and all ports are in one namespace.
func TestPortsAreLinks(t *testing.T) {
	seen := map[string]bool{}
	for _, h := range newPlan([]string{
		"holdfast-control-plane", "holdfast-worker", "holdfast-worker2", "holdfast-worker3",
	}) {
		for _, l := range h.Legs {
			if len(l.Port) > 15 || seen[l.Port] {
				t.Errorf("port %s of %s is too long, or there twice", l.Port, h.Name)
			}
			seen[l.Port] = true
		}
	}
}
