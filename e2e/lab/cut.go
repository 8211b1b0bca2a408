package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// cutTable is the switch's table of one-way cuts.
const cutTable = "lab_cut"

// noCut deletes the table, as noRules does.
const noCut = "table bridge " + cutTable + " {\n}\ndelete table bridge " + cutTable + "\n"

// ParseCut parses "A,B > C", given as one argument or as several.
func ParseCut(args []string) (from, to []string, err error) {
	left, right, found := strings.Cut(strings.Join(args, " "), ">")
	from, to = hostList(left), hostList(right)
	if !found || len(from) == 0 || len(to) == 0 || strings.Contains(right, ">") {
		return nil, nil, errors.New("parse cut: want hosts, '>', hosts")
	}
	return from, to, nil
}

// Cut drops every frame from some hosts to others, but none in the reverse direction; carrier
// stays. With a link it drops only frames that leave by that link; empty means every
// link. A host may be on both sides. It replaces an earlier cut.
func (l *Lab) Cut(ctx context.Context, link string, from, to []string) error {
	sources, err := l.find(from)
	if err != nil {
		return err
	}
	for i := range sources {
		if sources[i], err = sources[i].only(link); err != nil {
			return err
		}
	}
	targets, err := l.find(to)
	if err != nil {
		return err
	}
	if len(sources) == 0 || len(targets) == 0 {
		return errors.New("cut: no host on one side")
	}
	unlock, err := lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(applyRules(ctx, noCut+cutRules(sources, targets)), unlock())
}

func cutRules(from, to []host) string {
	return fmt.Sprintf(`table bridge %s {
	chain forward {
		type filter hook forward priority 0; policy accept;
		iifname { %s } oifname { %s } counter drop
	}
}
`, cutTable, ports(from), ports(to))
}
