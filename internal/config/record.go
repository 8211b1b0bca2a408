package config

import (
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxOrigins bounds a record: an object holds one address of each family, and another writer may have replaced as many.
const maxOrigins = 8

// reasonRecorded is the only reason of the record.
const reasonRecorded = "Recorded"

// Record returns the condition that proves which addresses an object with this UID holds; false if it holds none.
func Record(uid types.UID, origins lb.Origins) (metav1.Condition, bool) {
	return metav1.Condition{
		Type: v1beta1.ConditionAddressRecord, Status: metav1.ConditionTrue, Reason: reasonRecorded, Message: recordText(uid, origins),
	}, len(origins) > 0
}

// recordText is "uid=UID", then "ADDRESS=POOL" or "ADDRESS=POOL#TERMS" of each address.
func recordText(uid types.UID, origins lb.Origins) string {
	text := append(make([]byte, 0, 128), "uid="...)
	text = append(text, uid...)
	for _, o := range origins[:min(len(origins), maxOrigins)] {
		text = append(o.Address.AppendTo(append(text, ' ')), '=')
		text = append(text, o.Pool...)
		if o.Terms != "" {
			text = append(append(text, '#'), o.Terms...)
		}
	}
	return string(text)
}

// readRecord returns the record among the conditions of an object. One of another UID is of another object, whose status
// was restored or copied. One that Record would not write is not ours.
func readRecord(uid types.UID, conditions []metav1.Condition) lb.Origins {
	c := apimeta.FindStatusCondition(conditions, v1beta1.ConditionAddressRecord)
	if c == nil {
		return nil
	}
	of, rest, _ := strings.Cut(c.Message, " ")
	if of != "uid="+string(uid) {
		return nil
	}
	items := strings.SplitN(rest, " ", maxOrigins+1)
	out := make(lb.Origins, 0, 2)
	for _, item := range items {
		address, from, _ := strings.Cut(item, "=")
		pool, terms, _ := strings.Cut(from, "#")
		a, err := parseAddr(address)
		if err != nil {
			return nil
		}
		out = append(out, lb.Origin{Address: a, Pool: pool, Terms: terms})
	}
	if recordText(uid, out) != c.Message {
		return nil
	}
	return out
}
