package nodelifecycle

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

// MarshalText writes what UnmarshalText reads.
func (l Limit) MarshalText() ([]byte, error) {
	if l.Percent > 0 {
		return fmt.Appendf(nil, "%d%%", l.Percent), nil
	}
	return fmt.Append(nil, l.Nodes), nil
}

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
