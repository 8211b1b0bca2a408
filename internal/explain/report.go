package explain

import (
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Verdict is how a step went.
type Verdict string

// The verdicts.
const (
	OK Verdict = "ok"
	// Note: it works, but the user should know.
	Note    Verdict = "note"
	Problem Verdict = "problem"
	// Unseen: what the step needs could not be read.
	Unseen Verdict = "unseen"
)

// Step is one decision about a packet.
type Step struct {
	Name    string    `json:"step"`
	Verdict Verdict   `json:"verdict"`
	Reason  lb.Reason `json:"reason,omitempty"`
	// Text is one sentence. Details are more of them, in a line each.
	Text    string   `json:"text"`
	Details []string `json:"details,omitempty"`
	// Do is what to do first, if the sentence does not say it.
	Do string `json:"do,omitempty"`
}

// Report is the answer to one question.
type Report struct {
	Subject string `json:"subject"`
	Steps   []Step `json:"steps"`
	// First is the first thing to do.
	First string `json:"first"`
}

// add adds steps; one without a verdict has nothing to say.
func (r *Report) add(steps ...Step) {
	for _, s := range steps {
		if s.Verdict != "" {
			r.Steps = append(r.Steps, s)
		}
	}
}

// Healthy reports whether no step found a problem.
func (r Report) Healthy() bool {
	return !slices.ContainsFunc(r.Steps, func(s Step) bool { return s.Verdict == Problem })
}

// conclude finds the first thing to do: of the first problem, else of the first note.
func (r Report) conclude() Report {
	r.First = "nothing: no problem was found"
	for _, v := range []Verdict{Problem, Note, Unseen} {
		for i, s := range r.Steps {
			// What announcements say of endpoints, the step about these says better.
			if s.Verdict != v || s.Reason == lb.NoServingEndpoint && i < len(r.Steps)-1 && r.Steps[len(r.Steps)-1].Reason == s.Reason {
				continue
			}
			switch do := remedies[s.Reason]; {
			case s.Do != "":
				r.First = s.Do
			case do != "":
				r.First = s.Text + ": " + do
			case v == Unseen:
				r.First = "no problem was found in what could be read; ask an operator about the rest"
			default:
				r.First = s.Text
			}
			return r
		}
	}
	return r
}

// remedies are what to do about reasons whose sentence says only what is wrong.
var remedies = map[lb.Reason]string{
	lb.PoolExhausted:   "add addresses to the pool, or delete Services that need none",
	lb.AddressConflict: "remove the address from the machine with this MAC, or cut it from the pool",
	lb.AddressInUse:    "ask for another address, or have the other Service give it up",
	lb.NoAdvertisement: "create an L2Advertisement or a BGPAdvertisement",
	lb.QuotaExceeded:   "raise the quota of the pool, or delete Services of the namespace",
}
