package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConditionValid is the condition type that says whether an object is in force:
// True when all of it is, False with a reason and a sentence when some of it is not.
// What can be used of a False object is used.
const ConditionValid = "Valid"

// Status is what Holdfast reports of an object without a status of its own kind.
type Status struct {
	// Conditions of the object. Valid says whether all of it is in force.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
