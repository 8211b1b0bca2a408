package chaos

import (
	"fmt"
	"time"
)

// Kind is what a fault does.
type Kind string

// Kinds of faults. The last four are faults of a link.
const (
	// Power cuts a node's power, and gives it back.
	Power Kind = "power"
	// Freeze stops all processes of a node; its kernel runs.
	Freeze Kind = "freeze"
	// Kill kills a node's speaker, which starts again.
	Kill Kind = "kill"
	// Replace deletes the pod of a node's speaker.
	Replace Kind = "replace"
	// API takes the API server away. It is no fault of any node.
	API Kind = "api"
	// Cut pulls the cable of a node's link: both ends lose their carrier.
	Cut Kind = "cut"
	// Flap pulls the cable again and again, for FlapDown in each FlapEvery.
	Flap Kind = "flap"
	// Loss drops frames of a node's link in one direction or both; the carrier stays.
	Loss Kind = "loss"
	// Isolate drops all frames between nodes on a link; carriers stay. It has no node.
	Isolate Kind = "isolate"
)

// How a link flaps.
const (
	FlapDown  = time.Second
	FlapEvery = 4 * time.Second
)

// Fault is one fault. In and Out are percentages of lost frames.
type Fault struct {
	Kind     Kind          `json:"kind"`
	Node     string        `json:"node,omitempty"`
	Link     string        `json:"link,omitempty"`
	In       int           `json:"in,omitempty"`
	Out      int           `json:"out,omitempty"`
	Start    time.Duration `json:"start"`
	Duration time.Duration `json:"duration"`
}

// OfLink reports whether the fault is a fault of a link.
func (f Fault) OfLink() bool { return f.Link != "" }

// breaks reports whether the fault keeps a node from working on a link.
func (f Fault) breaks(node, link string) bool {
	if f.Kind == API {
		return false
	}
	return (f.Node == "" || f.Node == node) && (f.Link == "" || f.Link == link)
}

// cuts reports whether the fault takes a node away at once, and the node's neighbours or the node itself see that.
func (f Fault) cuts(node string) bool {
	return f.Node == node && (f.Kind == Power || f.Kind == Cut)
}

func (f Fault) String() string {
	text := string(f.Kind)
	if f.In > 0 {
		text += fmt.Sprintf(" %d %% in", f.In)
	}
	if f.Out > 0 {
		text += fmt.Sprintf(" %d %% out", f.Out)
	}
	for _, part := range []string{f.Node, f.Link} {
		if part != "" {
			text += " " + part
		}
	}
	return text
}
