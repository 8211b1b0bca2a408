package wire

import "fmt"

// Ability is something that tests need and that not every cluster can do.
type Ability string

// Abilities of clusters.
const (
	// StopsProxy keeps kube-proxy of one node from starting.
	StopsProxy Ability = "keeps kube-proxy of one node from starting"
	// DropsFrames cuts, blocks and loses chosen frames between hosts.
	DropsFrames Ability = "drops chosen frames between hosts"
	// NodesOnLAN has the nodes' own addresses, and so their heartbeats, on the clients' network.
	NodesOnLAN Ability = "has its nodes' own addresses on the clients' network"
)

// Lack is something that a cluster cannot do, and why.
type Lack struct {
	Ability Ability
	Reason  string
}

// FirstLack returns the first of some abilities that a cluster lacks, nil if it has all.
func FirstLack(lacks []Lack, needs []Ability) *Lack {
	for _, n := range needs {
		for i := range lacks {
			if lacks[i].Ability == n {
				return &lacks[i]
			}
		}
	}
	return nil
}

// String returns the lack as a sentence without its end.
func (l Lack) String() string {
	return fmt.Sprintf("it needs a cluster that %s; %s", l.Ability, l.Reason)
}
