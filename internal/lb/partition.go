package lb

// Partition is what running speakers wrote that do not hear this node.
type Partition struct {
	// YieldsTo are the nodes of the sides that precede this one, sorted. This side leaves to them every address
	// that they may announce.
	YieldsTo []string
	// Sides has one entry for each of these speakers, ordered by node name: its own view of its side.
	Sides []Side
}

// Side is one side of a partition, as one of its speakers sees it.
type Side struct {
	// Precedes: this node's side yields to that one.
	Precedes bool
	// Refuses are the nodes that the side does not reach. It is cut off too: it announces nothing that only
	// these nodes can serve.
	Refuses map[string]bool
}
