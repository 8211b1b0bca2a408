package wire

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Loss selects the frames of a host that the switch drops, ARP and NDP included.
type Loss struct {
	// In and Out are the percentages of lost frames to the host and from it.
	In, Out int
	// Link is the only affected link of the host; empty means every link.
	Link string
	// UDP restricts the loss to UDP.
	UDP bool
	// Burst and Pause alternate: frames are lost for the one and pass for the other.
	// Without Burst they are lost all the time.
	Burst, Pause time.Duration
}

// ParseBurst parses "ON/OFF", as in 500ms/500ms.
func ParseBurst(text string) (burst, pause time.Duration, err error) {
	on, off, _ := strings.Cut(text, "/")
	if burst, err = time.ParseDuration(on); err == nil {
		pause, err = time.ParseDuration(off)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("parse burst: want ON/OFF, such as 500ms/500ms: %w", err)
	}
	return burst, pause, nil
}

func (l Loss) validate() error {
	switch {
	case l.In < 0 || l.In > 100 || l.Out < 0 || l.Out > 100:
		return fmt.Errorf("loss of %d inbound, %d outbound: want 0 to 100 of a hundred", l.In, l.Out)
	case l.In == 0 && l.Out == 0:
		return errors.New("loss in neither direction")
	case (l.Burst == 0) != (l.Pause == 0) || l.Burst < 0 || l.Pause < 0:
		return fmt.Errorf("bursts of %s with pauses of %s: want both, or neither", l.Burst, l.Pause)
	case l.Burst%time.Millisecond != 0 || l.Pause%time.Millisecond != 0:
		return fmt.Errorf("bursts of %s with pauses of %s: want whole milliseconds", l.Burst, l.Pause)
	}
	return nil
}

// Lose returns the rules that drop frames of a host at random; carrier stays. They replace an earlier loss.
func (p Plan) Lose(hostName string, loss Loss) (string, error) {
	h, err := p.Find(hostName)
	if err != nil {
		return "", err
	}
	if h, err = h.only(loss.Link); err != nil {
		return "", err
	}
	if err := loss.validate(); err != nil {
		return "", err
	}
	return none(lossTable) + lossRules(h, loss), nil
}

// lossRules renders the drops of what passes the legs of a host.
func lossRules(h Host, loss Loss) string {
	var sets, rules strings.Builder
	match := ""
	if loss.UDP {
		match = "meta l4proto udp "
	}
	if loss.Burst > 0 {
		sets.WriteString("\tset period { type mark; size 16; flags dynamic, timeout; }\n")
		sets.WriteString("\tset burst { type mark; size 16; flags dynamic, timeout; }\n")
		// The first frame after a period, whosever it is, begins the next one. Frames come to
		// the switch without a mark, so that each set has one element at most.
		fmt.Fprintf(
			&rules,
			"\t\tmeta mark != @period add @period { meta mark timeout %dms } add @burst { meta mark timeout %dms }\n",
			(loss.Burst + loss.Pause).Milliseconds(),
			loss.Burst.Milliseconds(),
		)
		match += "meta mark @burst "
	}
	for _, direction := range []struct {
		name string
		of   int
	}{{"oifname", loss.In}, {"iifname", loss.Out}} {
		switch of := direction.of; of {
		case 0:
		case 100:
			fmt.Fprintf(&rules, "\t\t%s { %s } %scounter drop\n", direction.name, ports(Plan{h}), match)
		default:
			fmt.Fprintf(
				&rules,
				"\t\t%s { %s } %snumgen random mod 100 < %d counter drop\n",
				direction.name,
				ports(Plan{h}),
				match,
				of,
			)
		}
	}
	return table(lossTable, sets.String(), rules.String())
}
