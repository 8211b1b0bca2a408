package lb

// Object names a configuration object a Problem is about.
type Object struct {
	// Kind is the API kind, for example IPAddressPool or Service.
	Kind string
	// Namespace is empty for cluster-scoped kinds.
	Namespace string
	Name      string
}

// String returns "Kind namespace/name", or "Kind name" for cluster-scoped kinds.
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// MarshalText makes logs and debug pages show an object as String does.
func (o Object) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Problem is something that a user must mend: one word, and one sentence that says what is wrong and what to do.
// It never stops other objects from being served.
type Problem struct {
	Object  Object
	Reason  Reason
	Message string
	// Note: the whole object is in force, but the user should know how it is read.
	Note bool
}
