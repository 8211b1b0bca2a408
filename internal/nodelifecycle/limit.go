package nodelifecycle

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Limit is a number of nodes, or a percentage of the speakers' nodes, rounded up. One of the two fields is zero.
type Limit struct {
	Nodes   int
	Percent int
}

// Of returns the number of nodes that the limit allows of a total.
func (l Limit) Of(total int) int {
	return l.Nodes + (l.Percent*total+99)/100
}

// MarshalText writes the form that UnmarshalText reads. It never fails.
func (l Limit) MarshalText() ([]byte, error) {
	if l.Percent > 0 {
		return fmt.Appendf(nil, "%d%%", l.Percent), nil
	}
	return fmt.Append(nil, l.Nodes), nil
}

// UnmarshalText reads a number of nodes, such as "3", or a percentage, such as "10%".
func (l *Limit) UnmarshalText(text []byte) error {
	number, isPercentage := strings.CutSuffix(string(text), "%")
	n, err := strconv.ParseUint(number, 10, 16)

	switch {
	case err != nil:
		return errors.New("want a number of nodes or a percentage of them, such as 1 or 10%")
	case isPercentage && n > 100:
		return fmt.Errorf("%d%% of the nodes are more than there are", n)
	case isPercentage:
		*l = Limit{Percent: int(n)}
	default:
		*l = Limit{Nodes: int(n)}
	}

	return nil
}
