package k8s

import (
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serverClock is the clock of the API server, as the dates of its answers (RFC 9110 section 6.6.1) show it to the
// second.
type serverClock struct {
	// ahead is the difference to our clock; nil before the first answer.
	ahead atomic.Pointer[time.Duration]
}

// wrap returns a transport that reads the dates of all answers.
func (c *serverClock) wrap(next http.RoundTripper) http.RoundTripper {
	return datedTransport{next: next, clock: c}
}

// datedTransport reads the dates of all answers.
type datedTransport struct {
	next  http.RoundTripper
	clock *serverClock
}

// RoundTrip implements http.RoundTripper.
func (d datedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := d.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}

	at, err := http.ParseTime(answer.Header.Get("Date"))
	if err == nil {
		ahead := time.Until(at)
		d.clock.ahead.Store(&ahead)
	}

	return answer, nil
}

// APITime converts a time of our clock to the API server's clock; the zero Time if that is not known.
func (k *Cluster) APITime(ours time.Time) time.Time {
	ahead := k.clients.clock.ahead.Load()
	if ahead == nil {
		return time.Time{}
	}
	return ours.Round(0).Add(*ahead)
}

// observedField is the field of a SpeakerState that every report of its speaker changes.
const observedField = `"f:observed"`

// ReportTime returns the time of a speaker's last report by the clock of the API server; the zero Time if that is not
// known. The controller's writes of conditions do not count.
func ReportTime(s *v1beta1.SpeakerState) (at time.Time) {
	for _, m := range s.ManagedFields {
		if m.Time == nil || m.FieldsV1 == nil {
			continue
		}

		isReport := strings.Contains(m.FieldsV1.GetRawString(), observedField)
		if isReport && m.Time.After(at) {
			at = m.Time.Time
		}
	}

	return at
}

// reportFields replaces the names of all fields of a report, which need more memory than the report.
var reportFields = metav1.NewFieldsV1(`{"f:status":{"f:observed":{}}}`)

// trimReport reduces the managed fields of a SpeakerState to what ReportTime reads.
func trimReport(o *v1beta1.SpeakerState) {
	at := metav1.NewTime(ReportTime(o))
	o.ManagedFields = []metav1.ManagedFieldsEntry{}

	if !at.IsZero() {
		o.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &at, FieldsV1: reportFields}}
	}
}
