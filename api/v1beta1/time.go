package v1beta1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Time is a time in a status. An invalid time is decoded as zero. The API server does not enforce the format, and one
// invalid time must not make the list of all objects of its kind unreadable.
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:Format=date-time
// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$`
type Time struct{ metav1.Time }

// NewTime returns t as it is stored, in whole seconds.
func NewTime(t time.Time) Time { return Time{metav1.NewTime(t).Rfc3339Copy()} }

// UnmarshalJSON implements json.Unmarshaler. It never fails.
func (t *Time) UnmarshalJSON(b []byte) error {
	if t.Time.UnmarshalJSON(b) != nil {
		*t = Time{}
	}
	return nil
}

// MicroTime is like Time, with microseconds.
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:Format=date-time
// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{6}Z$`
type MicroTime struct{ metav1.MicroTime }

// NewMicroTime returns t.
func NewMicroTime(t time.Time) MicroTime { return MicroTime{metav1.NewMicroTime(t)} }

// UnmarshalJSON implements json.Unmarshaler. It never fails.
func (t *MicroTime) UnmarshalJSON(b []byte) error {
	if t.MicroTime.UnmarshalJSON(b) != nil {
		*t = MicroTime{}
	}
	return nil
}
