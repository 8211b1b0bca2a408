package wire

import (
	"errors"
	"fmt"
	"strings"
)

// ParseCut parses "A,B > C", given as one argument or as several.
func ParseCut(args []string) (from, to []string, err error) {
	left, right, found := strings.Cut(strings.Join(args, " "), ">")
	from, to = hostList(left), hostList(right)
	if !found || len(from) == 0 || len(to) == 0 || strings.Contains(right, ">") {
		return nil, nil, errors.New("parse cut: want hosts, '>', hosts")
	}
	return from, to, nil
}

// Cut returns the rules that drop every frame from some hosts to others, but none in the reverse direction; carrier
// stays. With a link they drop only frames that leave by that link; empty means every
// link. A host may be on both sides. A cut replaces the one before.
func (p Plan) Cut(link string, from, to []string) (string, error) {
	sources, err := p.find(from)
	if err != nil {
		return "", err
	}
	for i := range sources {
		if sources[i], err = sources[i].only(link); err != nil {
			return "", err
		}
	}
	targets, err := p.find(to)
	if err != nil {
		return "", err
	}
	if len(sources) == 0 || len(targets) == 0 {
		return "", errors.New("cut: no host on one side")
	}
	return none(cutTable) + cutRules(sources, targets), nil
}

func cutRules(from, to Plan) string {
	return table(cutTable, "", fmt.Sprintf("\t\tiifname { %s } oifname { %s } counter drop\n", ports(from), ports(to)))
}
