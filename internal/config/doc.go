// Package config turns API objects into the values of package lb.
//
// Objects and Options go in; an lb.State and a list of Problems come out. An invalid part of an object becomes a
// Problem of that object. The rest of the object, and all other objects, stay in force.
//
//	state, problems := config.Compile(objects, options)
//
// Compile starts from nothing. A daemon keeps a Compiler, which reads only the objects that changed since its last run,
// and has the same results.
//
// The package is pure: it must not use a client, a clock or a log. Its results do not depend on the order of its input.
package config
