package events

// Bus carries hints between replicas.
type Bus interface{}
