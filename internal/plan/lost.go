package plan

import "github.com/holdfast-lb/holdfast/internal/lb"

// lost returns the nodes whose speakers this node does not hear. Endpoints on them that cannot serve do not answer.
func lost(s lb.State) (out map[string]bool) {
	for node := range s.Speakers {
		if s.Here.Hears[node] {
			continue
		}
		if out == nil {
			out = map[string]bool{}
		}
		out[node] = true
	}
	return out
}
