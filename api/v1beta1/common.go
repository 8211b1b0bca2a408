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

// Conditions on Services. Each has one writer at a time.
const (
	// ConditionAddressAssigned is written by the controller.
	ConditionAddressAssigned = "holdfast.dev/AddressAssigned"
	// ConditionAnnouncedL2 is written by the speaker that owns the Service's address.
	ConditionAnnouncedL2 = "holdfast.dev/AnnouncedL2"
	// ConditionAnnouncedBGP is written by the lowest-named speaker that advertises the Service.
	ConditionAnnouncedBGP = "holdfast.dev/AnnouncedBGP"
	// ConditionFiltered is written by the controller: who may reach the Service, and False where its ranges or
	// limits cannot be read in part.
	ConditionFiltered = "holdfast.dev/Filtered"
	// ConditionFilterEnforced is written by the speaker that writes AnnouncedL2, or else AnnouncedBGP: False where
	// its node cannot vouch for the Service's ranges.
	ConditionFilterEnforced = "holdfast.dev/FilterEnforced"
	// ConditionAnnotationsHonoured is written by the controller: False lists the annotations that do nothing.
	ConditionAnnotationsHonoured = "holdfast.dev/AnnotationsHonoured"
)

// AnnotationHostnameShown records on a Service the host name that its status shows
// because it was asked for, so that it can be taken back.
const AnnotationHostnameShown = "holdfast.dev/hostname-shown"

// FinalizerAddress stands on a Service or FloatingIP while it holds an address,
// and on a pool while somebody holds one of it.
const FinalizerAddress = "holdfast.dev/address"

// AnnotationAssigned records on a Service or FloatingIP which pool each of its addresses was
// assigned from, as "ADDRESS=POOL" joined by commas.
const AnnotationAssigned = "holdfast.dev/assigned"
