package quorum

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Limit is a number of nodes, or a percentage of the speakers' nodes, rounded up.
type Limit struct {
	Nodes, Percent int
}

// Of returns the limit among so many nodes.
func (l Limit) Of(nodes int) int { return l.Nodes + (l.Percent*nodes+99)/100 }

// String returns the limit as UnmarshalText reads it.
func (l Limit) String() string {
	if l.Percent > 0 {
		return fmt.Sprintf("%d%%", l.Percent)
	}
	return strconv.Itoa(l.Nodes)
}

// MarshalText implements encoding.TextMarshaler.
func (l Limit) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads "3" or "10%".
func (l *Limit) UnmarshalText(text []byte) error {
	number, percent := strings.CutSuffix(string(text), "%")
	n, err := strconv.ParseUint(number, 10, 16)
	switch {
	case err != nil:
		return errors.New("want a number of nodes or a percentage of them, such as 1 or 10%")
	case percent && n > 100:
		return fmt.Errorf("%d%% of the nodes are more than there are", n)
	case percent:
		*l = Limit{Percent: int(n)}
	default:
		*l = Limit{Nodes: int(n)}
	}
	return nil
}
